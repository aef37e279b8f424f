package operator

import (
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// TestUpgrade upgrades with the README's command, which replaces every replica with all roles: no request, event or API call
// fails.
func TestUpgrade(t *testing.T) {
	s := setUp(t)
	image := nextImage(t)
	l := startLoad(t, s, true)
	started := time.Now()
	if err := node.Script(t.Context(), "install.sh", image); err != nil {
		t.Fatal(err)
	}
	t.Logf("upgraded in %s", time.Since(started).Round(time.Second))
	awaitWhole(t)
	pods, err := node.ServerPods(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range pods {
		if got := pods[i].Spec.Containers[0].Image; got != image {
			t.Errorf("Pod %s still has the image %s", pods[i].Name, got)
		}
	}
	l.stop(t)
	l.requests.mustNotHaveFailed(t)
	l.events.mustNotHaveFailed(t)
	l.api.mustNotHaveFailed(t)
}

// nextImage tags the server's image with another name, which makes it a different image.
func nextImage(t *testing.T) string {
	t.Helper()
	set, err := statefulSet(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	current, err := name.ParseReference(set.Spec.Template.Spec.Containers[0].Image, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	descriptor, err := remote.Get(current, remote.WithContext(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	next := current.Context().Tag("upgrade-" + time.Now().UTC().Format("20060102-150405"))
	if err := remote.Tag(next, descriptor, remote.WithContext(t.Context())); err != nil {
		t.Fatal(err)
	}
	return next.Name()
}
