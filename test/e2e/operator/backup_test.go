package operator

import (
	"os"
	"path/filepath"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// What was saved as docs/operations.md says is what there is after a restore: objects that came later are gone, events that were
// saved are delivered, and requests and events go on.
func TestBackupAndRestore(t *testing.T) {
	s := setUp(t)
	kept := holdEvents(t, s)
	kubectl := harness.NewKubectl(t, node.Kubeconfig, harness.SystemNamespace)
	server := func(input string, args ...string) string {
		t.Helper()
		return kubectl.Must(t, input, append([]string{"exec", "-i", harness.ServerName + "-1", "--", "/knative-apiserver"}, args...)...)
	}
	objects := filepath.Join(t.TempDir(), "objects.db")
	if err := os.WriteFile(objects, []byte(server("", "snapshot", "save", "-")), 0o600); err != nil {
		t.Fatal(err)
	}
	events := server("", "events", "save", "-")
	create(t, idleTrigger(s.namespace, "later"))
	kept.discard(t)

	if err := node.Script(t.Context(), "restore.sh", objects); err != nil {
		t.Fatal(err)
	}
	awaitWhole(t)
	triggers := node.Admin.Dynamic.Resource(harness.KindOf("Trigger").GVR()).Namespace(s.namespace)
	if _, err := triggers.Get(t.Context(), "later", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a Trigger that came after the snapshot: %v, want that it is not found", err)
	}
	server(events, "events", "restore", "-")
	kept.release(t)
	startLoad(t, s, true).stop(t)
}
