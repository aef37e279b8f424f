package namespace

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
)

var configMaps = corev1.SchemeGroupVersion.WithResource("configmaps")

// fixture is a Reconciler with fake clients and informers.
type fixture struct {
	*Reconciler
	kubernetes *fake.Clientset
	requeued   []types.NamespacedName
}

func configMap(namespace, name string, finalizers ...string) runtime.Object {
	return &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Finalizers: finalizers},
	}
}

func newFixture(t *testing.T, n *corev1.Namespace, content ...runtime.Object) *fixture {
	t.Helper()
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	objects := metadatafake.NewSimpleMetadataClient(scheme, content...)
	// The fake does not support deletions of collections.
	objects.PrependReactor("delete-collection", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		for _, obj := range content {
			m := obj.(*metav1.PartialObjectMetadata)
			if m.Namespace == action.GetNamespace() && len(m.Finalizers) == 0 {
				_ = objects.Tracker().Delete(action.GetResource(), m.Namespace, m.Name)
			}
		}
		return true, nil, nil
	})
	f := &fixture{kubernetes: fake.NewClientset(n)}
	f.Reconciler = &Reconciler{
		Kubernetes: f.kubernetes, Objects: objects, Resources: []schema.GroupVersionResource{configMaps},
		Clock:      clocktesting.NewFakePassiveClock(time.Unix(1000, 0)),
		namespaces: cache.NewStore(cache.MetaNamespaceKeyFunc), accounts: cache.NewStore(cache.MetaNamespaceKeyFunc),
	}
	if err := f.namespaces.Add(n); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fixture) reconcile(t *testing.T, name string) []string {
	t.Helper()
	f.kubernetes.ClearActions()
	key := types.NamespacedName{Name: name}
	result, err := f.Reconcile(t.Context(), reconciler.NewRequest(key, true))
	if err != nil {
		t.Fatal(err)
	}
	if result.RequeueAfter > 0 {
		f.requeued = append(f.requeued, key)
	}
	var writes []string
	for _, action := range f.kubernetes.Actions() {
		if action.GetVerb() != "get" {
			writes = append(writes, strings.Join([]string{action.GetVerb(), action.GetResource().Resource, action.GetSubresource()}, " "))
		}
	}
	return writes
}

func namespace(terminating bool) *corev1.Namespace {
	n := &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: "ns", UID: "1"},
		Spec:       corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{corev1.FinalizerKubernetes}},
		Status:     corev1.NamespaceStatus{Phase: corev1.NamespaceActive},
	}
	if terminating {
		n.DeletionTimestamp, n.Status.Phase = ptr.To(metav1.Unix(1, 0)), corev1.NamespaceTerminating
	}
	return n
}

func TestNamespaceGetsItsServiceAccount(t *testing.T) {
	f := newFixture(t, namespace(false))
	if writes := f.reconcile(t, "ns"); !slices.Equal(writes, []string{"create serviceaccounts "}) {
		t.Errorf("writes are %q", writes)
	}
	if err := f.accounts.Add(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "default"}}); err != nil {
		t.Fatal(err)
	}
	if writes := f.reconcile(t, "ns"); writes != nil {
		t.Errorf("writes are %q", writes)
	}
}

func TestTerminatingNamespaceIsEmptiedAndRemoved(t *testing.T) {
	f := newFixture(t, namespace(true), configMap("ns", "a"), configMap("other", "a"))
	if writes := f.reconcile(t, "ns"); !slices.Equal(writes, []string{"create namespaces finalize", "delete namespaces "}) {
		t.Errorf("writes are %q", writes)
	}
	if _, err := f.Objects.Resource(configMaps).Namespace("other").Get(t.Context(), "a", metav1.GetOptions{}); err != nil {
		t.Errorf("the object of another namespace: %v", err)
	}
}

func TestTerminatingNamespaceReportsWhatRemains(t *testing.T) {
	f := newFixture(t, namespace(true), configMap("ns", "a"), configMap("ns", "b", "example.com/mine"))
	if writes := f.reconcile(t, "ns"); !slices.Equal(writes, []string{"update namespaces status"}) || len(f.requeued) != 1 {
		t.Errorf("writes are %q, requeued %v", writes, f.requeued)
	}
	n, err := f.kubernetes.CoreV1().Namespaces().Get(t.Context(), "ns", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var messages []string
	for _, c := range n.Status.Conditions {
		messages = append(messages, string(c.Type)+" "+string(c.Status)+" "+c.Message)
	}
	if want := []string{
		"NamespaceContentRemaining True Some resources are remaining: configmaps has 1 resource instances",
		"NamespaceFinalizersRemaining True Some content in the namespace has finalizers remaining: example.com/mine in 1 resource instances",
	}; !slices.Equal(messages, want) {
		t.Errorf("conditions are %q", messages)
	}
	// An unchanged status is not written.
	if writes := f.reconcile(t, "ns"); writes != nil || len(f.requeued) != 2 {
		t.Errorf("writes are %q, requeued %v", writes, f.requeued)
	}
}

func TestNamespaceStaysForFinalizersOfOthers(t *testing.T) {
	n := namespace(true)
	n.Spec.Finalizers = append(n.Spec.Finalizers, "example.com/mine")
	f := newFixture(t, n)
	if writes := f.reconcile(t, "ns"); !slices.Equal(writes, []string{"create namespaces finalize"}) {
		t.Errorf("writes are %q", writes)
	}
}

// Objects that were stored before the server had Namespaces get their Namespaces.
func TestEnsure(t *testing.T) {
	f := newFixture(t, namespace(false), configMap("ns", "a"), configMap("old", "a"))
	if err := Ensure(t.Context(), f.kubernetes, f.Objects, f.Resources, "default"); err != nil {
		t.Fatal(err)
	}
	list, err := f.kubernetes.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, n := range list.Items {
		names = append(names, n.Name)
	}
	slices.Sort(names)
	if want := []string{"default", "ns", "old"}; !slices.Equal(names, want) {
		t.Errorf("namespaces are %q, want %q", names, want)
	}
}
