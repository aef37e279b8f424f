package images

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/knative-apiserver/knative-apiserver/pkg/egress"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// host is a registry on the loopback interface.
type host struct {
	address string
	// password is the required password of the user "robot", unless empty.
	password atomic.Value
	// status is the status of all responses, unless 0.
	status    atomic.Int32
	manifests atomic.Int32
}

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{}
	h.password.Store("")
	blobs := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, password, _ := r.BasicAuth()
		if want := h.password.Load(); want != "" && password != want {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if status := h.status.Load(); status != 0 {
			w.WriteHeader(int(status))
			return
		}
		if strings.Contains(r.URL.Path, "/manifests/") {
			h.manifests.Add(1)
		}
		blobs.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	h.address = server.Listener.Addr().String()
	return h
}

// push stores an image with a user in its configuration, and returns its tag and digest.
func (h *host) push(t *testing.T, user string) (tag, digest string) {
	t.Helper()
	image, err := mutate.Config(empty.Image, v1.Config{User: user})
	if err != nil {
		t.Fatal(err)
	}
	reference, err := name.ParseReference(h.address + "/shop/cart:v1")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(reference, image, remote.WithContext(t.Context())); err != nil {
		t.Fatal(err)
	}
	hash, err := image.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return reference.String(), reference.Context().Digest(hash.String()).String()
}

func newResolver(change func(*settings.Settings), objects ...runtime.Object) (*Resolver, *clocktesting.FakePassiveClock) {
	now := clocktesting.NewFakePassiveClock(time.Unix(0, 0))
	current := settings.Default("example.com")
	// Longer than a stall of a busy machine.
	current.Deployment.DigestTimeout = time.Minute
	if change != nil {
		change(&current)
	}
	return New(Options{
		Client: fake.NewClientset(objects...), Settings: func() *settings.Settings { return &current }, Clock: now, Logger: klog.Background(),
		Guard: egress.New(egress.Options{AllowLoopback: true}),
	}), now
}

func pullSecret(name, config string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Type:       corev1.SecretTypeDockerConfigJson,
		Data:       map[string][]byte{corev1.DockerConfigJsonKey: []byte(config)},
	}
}

func TestResolve(t *testing.T) {
	h := newHost(t)
	for _, user := range []string{"", "65532:65532", "app"} {
		tag, digest := h.push(t, user)
		r, _ := newResolver(nil)
		for _, reference := range []string{tag, digest} {
			got, err := r.Resolve(t.Context(), Pull{Namespace: "shop"}, reference)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(Image{Reference: digest, User: user, Known: true}, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", reference, diff)
			}
		}
	}
}

func TestResolveMissing(t *testing.T) {
	h := newHost(t)
	r, _ := newResolver(nil)
	image := h.address + "/shop/nothing:v1"
	_, err := r.Resolve(t.Context(), Pull{Namespace: "shop"}, image)
	var missing *MissingError
	if !errors.As(err, &missing) || missing.Image != image || !strings.HasPrefix(err.Error(), fmt.Sprintf("Unable to fetch image %q: ", image)) {
		t.Errorf("error %v, want a missing image", err)
	}
}

func TestResolveDegrades(t *testing.T) {
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	unreachable := strings.TrimPrefix(closed.URL, "http://")
	refuses, fails := newHost(t), newHost(t)
	refuses.password.Store("secret")
	fails.status.Store(http.StatusBadGateway)
	tests := map[string]struct {
		registry string
		warns    bool
	}{
		"not reachable":      {registry: unreachable, warns: true},
		"no credentials":     {registry: refuses.address, warns: true},
		"fails":              {registry: fails.address, warns: true},
		"exists by name":     {registry: "kind.local"},
		"exists by name too": {registry: "ko.local"},
		"skipped":            {registry: "skipped.example:5000"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r, _ := newResolver(func(s *settings.Settings) { s.Deployment.SkipTagResolving = []string{"skipped.example:5000"} })
			image := test.registry + "/shop/cart:v1"
			got, err := r.Resolve(t.Context(), Pull{Namespace: "shop"}, image)
			if err != nil {
				t.Fatal(err)
			}
			if got.Reference != image || got.Known || (got.Warning != "") != test.warns {
				t.Errorf("%+v, want the tag, with a warning: %t", got, test.warns)
			}
		})
	}
}

func TestUnreachableRegistryIsAvoided(t *testing.T) {
	h := newHost(t)
	tag, digest := h.push(t, "")
	r, now := newResolver(nil)
	r.avoid(h.address)
	resolve := func() Image {
		t.Helper()
		got, err := r.Resolve(t.Context(), Pull{Namespace: "shop"}, tag)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := resolve(); got.Reference != tag || got.Warning == "" {
		t.Errorf("%+v, want the tag, with a warning", got)
	}
	now.SetTime(now.Now().Add(unreachableTTL))
	if got := resolve(); got.Reference != digest {
		t.Errorf("%+v, want the digest after some time", got)
	}
}

func TestPullSecrets(t *testing.T) {
	h := newHost(t)
	tag, digest := h.push(t, "")
	h.password.Store("right")
	auth := func(password string) string { return base64.StdEncoding.EncodeToString([]byte("robot:" + password)) }
	config := func(key, password string) string {
		return fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, key, auth(password))
	}
	account := func(name, secret string) *corev1.ServiceAccount {
		return &corev1.ServiceAccount{
			ObjectMeta:       metav1.ObjectMeta{Namespace: "shop", Name: name},
			ImagePullSecrets: []corev1.LocalObjectReference{{Name: secret}},
		}
	}
	legacy := pullSecret("legacy", "")
	legacy.Type, legacy.Data = corev1.SecretTypeDockercfg, map[string][]byte{
		corev1.DockerConfigKey: fmt.Appendf(nil, `{%q:{"username":"robot","password":"right"}}`, "http://"+h.address+"/v2/"),
	}
	tests := map[string]struct {
		objects []runtime.Object
		pull    Pull
		want    string
	}{
		"of the Pod":                  {objects: []runtime.Object{pullSecret("mine", config(h.address, "right"))}, pull: Pull{Secrets: "gone,mine"}, want: digest},
		"of the default account":      {objects: []runtime.Object{pullSecret("mine", config(h.address, "right")), account("default", "mine")}, want: digest},
		"of the Pod's account":        {objects: []runtime.Object{pullSecret("mine", config(h.address, "right")), account("robot", "mine")}, pull: Pull{ServiceAccount: "robot"}, want: digest},
		"of the older kind":           {objects: []runtime.Object{legacy}, pull: Pull{Secrets: "legacy"}, want: digest},
		"the second is valid":         {objects: []runtime.Object{pullSecret("a", config(h.address, "wrong")), pullSecret("b", config(h.address, "right"))}, pull: Pull{Secrets: "a,b"}, want: digest},
		"for the repository":          {objects: []runtime.Object{pullSecret("mine", config(h.address+"/shop", "right"))}, pull: Pull{Secrets: "mine"}, want: digest},
		"for another repository":      {objects: []runtime.Object{pullSecret("mine", config(h.address+"/sho", "right"))}, pull: Pull{Secrets: "mine"}, want: tag},
		"for another registry":        {objects: []runtime.Object{pullSecret("mine", config("other.example", "right"))}, pull: Pull{Secrets: "mine"}, want: tag},
		"of another namespace's Pods": {objects: []runtime.Object{pullSecret("mine", config(h.address, "right"))}, pull: Pull{Namespace: "bank", Secrets: "mine"}, want: tag},
		"not JSON":                    {objects: []runtime.Object{pullSecret("mine", "{")}, pull: Pull{Secrets: "mine"}, want: tag},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if test.pull.Namespace == "" {
				test.pull.Namespace = "shop"
			}
			r, _ := newResolver(nil, test.objects...)
			got, err := r.Resolve(t.Context(), test.pull, tag)
			if err != nil {
				t.Fatal(err)
			}
			if got.Reference != test.want {
				t.Errorf("%+v, want %s", got, test.want)
			}
		})
	}
}

func TestEqualQuestionsAreAskedOnce(t *testing.T) {
	h := newHost(t)
	tag, _ := h.push(t, "")
	r, now := newResolver(nil)
	ask := func(namespace string) {
		if _, err := r.Resolve(t.Context(), Pull{Namespace: namespace}, tag); err != nil {
			t.Error(err)
		}
	}
	before := h.manifests.Load()
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() { ask("shop") })
	}
	all.Wait()
	if asked := h.manifests.Load() - before; asked != 1 {
		t.Errorf("%d requests, want one", asked)
	}
	// Another namespace has other secrets, and tags may move.
	ask("bank")
	now.SetTime(now.Now().Add(answerTTL))
	ask("shop")
	if asked := h.manifests.Load() - before; asked != 3 {
		t.Errorf("%d requests in all, want 3", asked)
	}
}

// TestUser checks whether the user of an image is classified as root or non-root.
func TestUser(t *testing.T) {
	for user, want := range map[string]struct{ nonRoot, root bool }{
		"": {false, true}, "root": {false, true}, "0": {false, true}, "0:1000": {false, true},
		"65532": {true, false}, "7:0": {true, false}, "app": {false, false},
	} {
		i := Image{Known: true, User: user}
		if i.NonRoot() != want.nonRoot || i.Root() != want.root {
			t.Errorf("user %q: non-root %v, root %v", user, i.NonRoot(), i.Root())
		}
	}
	if (&Image{User: "7"}).NonRoot() {
		t.Error("an image that is not known does not run as root")
	}
}
