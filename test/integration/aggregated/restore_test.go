package aggregated

import (
	"fmt"
	"net/http"
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/pkg/origin"
	"github.com/knative-apiserver/knative-apiserver/pkg/restore"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// restoreRounds is the number of passes of the host's garbage collector over all kinds after which the test assumes that no
// restored object is deleted.
const restoreRounds = 3

// TestRestore restores objects that were deleted after the snapshot, which the host's garbage collector remembers, and others
// that still exist. All of them stay, with their dependents on the host, and their UIDs do not change afterwards. The same
// snapshot is restored twice, so that the second restore meets the objects of the first.
func TestRestore(t *testing.T) {
	host.StartAfter(t)
	binary, err := harness.Binary()
	if err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) {
		t.Helper()
		process, err := harness.StartProcess(nil, binary, args...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(process.Kill)
		if code, err := process.ExitCode(); err != nil || code != 0 {
			t.Fatalf("%v: exit code %d, %v\n%s", args, code, err, process.Log())
		}
	}
	deleted, kept := host.Namespace(t, "restore-deleted", nil), host.Namespace(t, "restore-kept", nil)
	var all []*unstructured.Unstructured
	for _, ns := range []string{deleted, kept} {
		service, configuration, revision := family(t, ns)
		all = append(all, service, configuration, revision)
		all = append(all, mustCreate(t, harness.KindOf("Broker").Object(ns, "events")))
	}
	// As the controllers create it for a Revision.
	revision := all[6]
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "owner-00001-deployment", OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(revision, revision.GroupVersionKind())}},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](0), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
			},
		},
	}
	deployments := host.Host.AppsV1().Deployments(kept)
	if deployment, err = deployments.Create(t.Context(), deployment, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(host.Dir, "data")
	snapshot := filepath.Join(t.TempDir(), "objects.db")
	run("snapshot", "save", "--data-dir="+data, snapshot)

	uids := map[*unstructured.Unstructured]types.UID{}
	for _, obj := range all {
		uids[obj] = obj.GetUID()
	}
	for _, id := range []string{"aaaaaaaaaa", "bbbbbbbbbb"} {
		kubectl(t, deleted).Must(t, "", "delete", "ksvc,broker", "--all", "--wait=false")
		for _, obj := range all[:4] {
			gone(t, obj)
		}
		if err := host.Server.Stop(); err != nil {
			t.Fatal(err)
		}
		run("snapshot", "restore", "--data-dir="+data, "--name=knative-apiserver", "--peer-url=http://localhost:0", "--replace", snapshot)
		requestRestore(t, id)
		if err := host.Start(); err != nil {
			t.Fatal(err)
		}
		for range restoreRounds {
			for _, obj := range all {
				response := get(t, host.Admin, obj)
				if response.Code != http.StatusOK {
					t.Fatalf("restore %s: %s %s: code %d", id, obj.GetKind(), obj.GetName(), response.Code)
				}
				now := response.Object(t)
				if want := origin.Restored(uids[obj], id); now.GetUID() != want || now.GetDeletionTimestamp() != nil {
					t.Errorf("restore %s: %s %s has UID %s, want %s; deleted at %v", id, obj.GetKind(), obj.GetName(), now.GetUID(), want, now.GetDeletionTimestamp())
				}
				for _, owner := range now.GetOwnerReferences() {
					if want := origin.Restored(owner.UID, id); owner.UID != want {
						t.Errorf("restore %s: the owner of %s %s is %s, want %s", id, obj.GetKind(), obj.GetName(), owner.UID, want)
					}
				}
			}
			for _, ns := range []string{deleted, kept} {
				collected(t, ns, "Configuration")
				collected(t, ns, "Revision")
			}
		}
		now, err := deployments.Get(t.Context(), deployment.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if now.UID != deployment.UID || now.DeletionTimestamp != nil || now.OwnerReferences[0].UID != origin.Restored(revision.GetUID(), id) {
			t.Errorf("restore %s: the Deployment has UID %s, owners %v", id, now.UID, now.OwnerReferences)
		}
	}
	// Objects that are deleted after a restore are deleted with their dependents.
	kubectl(t, kept).Must(t, "", "delete", "ksvc", "--all", "--wait=false")
	for _, obj := range all[4:7] {
		gone(t, obj)
	}
	within(t, rediscovery, "the Deployment is deleted", func() error {
		if _, err := deployments.Get(t.Context(), deployment.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("reading it: %w", err)
		}
		return nil
	})
}

// requestRestore requests a restore in the host cluster, like hack/restore.sh.
func requestRestore(t *testing.T, id string) {
	t.Helper()
	configMaps := host.Host.CoreV1().ConfigMaps(harness.SystemNamespace)
	request := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: restore.ConfigMapName}, Data: map[string]string{restore.IDKey: id}}
	_, err := configMaps.Create(t.Context(), request, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = configMaps.Update(t.Context(), request, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = configMaps.Delete(t.Context(), restore.ConfigMapName, metav1.DeleteOptions{})
	})
}
