package hostservice

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
)

const target = "gateway-internal.knative-system.svc.cluster.local"

func newOwner(uid string) *servingv1.Route {
	return &servingv1.Route{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "hello", UID: types.UID(uid), Labels: map[string]string{"team": "a"},
		Annotations: map[string]string{"note": "n", corev1.LastAppliedConfigAnnotation: "{}"},
	}}
}

// fixture is a host cluster, and a controller whose objects have Services there.
type fixture struct {
	client   *fake.Clientset
	services *Services

	mu   sync.Mutex
	keys []string
}

func (w *fixture) Reconcile(_ context.Context, request reconciler.Request) (reconciler.Result, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keys = append(w.keys, request.Key.Name)
	return reconciler.Result{}, nil
}

// reconciled returns the objects that were reconciled since the last call.
func (w *fixture) reconciled() []string {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	keys := w.keys
	w.keys = nil
	return keys
}

// run calls fn with a fixture that has some objects, in a synctest bubble.
func run(t *testing.T, fn func(t *testing.T, w *fixture), objects ...runtime.Object) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		w := &fixture{client: fake.NewClientset(objects...)}
		informer, err := NewInformer(w.client)
		if err != nil {
			t.Fatal(err)
		}
		w.services, err = New(Options{
			Client: w.client.CoreV1(), Informer: informer, Kind: servingv1.SchemeGroupVersion.WithKind("Route"),
			LabelKey: "serving.knative.dev/route", Target: target,
		})
		if err != nil {
			t.Fatal(err)
		}
		controller := reconciler.New("test", w)
		if err := w.services.Track(controller); err != nil {
			t.Fatal(err)
		}
		var running sync.WaitGroup
		defer running.Wait()
		defer stop()
		running.Go(func() { informer.RunWithContext(ctx) })
		running.Go(func() { controller.Run(ctx, 1) })
		<-time.After(time.Second)
		w.reconciled()
		fn(t, w)
	})
}

func (w *fixture) get(t *testing.T, name string) *corev1.Service {
	t.Helper()
	service, err := w.client.CoreV1().Services("default").Get(t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	service.TypeMeta, service.ManagedFields, service.ResourceVersion = metav1.TypeMeta{}, nil, ""
	return service
}

func (w *fixture) apply(t *testing.T, owner metav1.Object, names ...string) {
	t.Helper()
	synctest.Wait()
	if err := w.services.Apply(t.Context(), owner, names); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

// writes counts the writes since the last call.
func (w *fixture) writes() int {
	n := 0
	for _, action := range w.client.Actions() {
		if verb := action.GetVerb(); verb != "get" && verb != "list" && verb != "watch" {
			n++
		}
	}
	w.client.ClearActions()
	return n
}

func wanted(name, uid string) *corev1.Service {
	yes := true
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, Labels: map[string]string{"team": "a", "serving.knative.dev/route": "hello"}, Annotations: map[string]string{"note": "n"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "serving.knative.dev/v1", Kind: "Route", Name: "hello", UID: types.UID(uid), Controller: &yes, BlockOwnerDeletion: &yes}},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeExternalName, ExternalName: target, SessionAffinity: corev1.ServiceAffinityNone,
			Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: intstr.FromInt32(80)}},
		},
	}
}

// TestApply checks that Services are created, repaired and deleted.
func TestApply(t *testing.T) {
	run(t, func(t *testing.T, w *fixture) {
		owner := newOwner("u")
		w.apply(t, owner, "hello", "v1-hello")
		for _, name := range []string{"hello", "v1-hello"} {
			if diff := cmp.Diff(wanted(name, "u"), w.get(t, name)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
		if diff := cmp.Diff([]string{"hello"}, w.reconciled()[:1]); diff != "" {
			t.Errorf("reconciled (-want +got):\n%s", diff)
		}
		w.writes()
		w.apply(t, owner, "hello", "v1-hello")
		if n := w.writes(); n != 0 {
			t.Errorf("%d writes at rest", n)
		}
		// Other clients may add fields.
		edited := w.get(t, "hello")
		edited.Annotations["theirs"], edited.Spec.ExternalName = "kept", "example.com"
		if _, err := w.client.CoreV1().Services("default").Update(t.Context(), edited, metav1.UpdateOptions{FieldManager: "kubectl-edit"}); err != nil {
			t.Fatal(err)
		}
		if got := w.reconciled(); len(got) == 0 {
			t.Error("not reconciled after a manual change")
		}
		owner.Labels = map[string]string{"tier": "b"}
		w.apply(t, owner, "hello")
		want := wanted("hello", "u")
		want.Labels, want.Annotations["theirs"] = map[string]string{"tier": "b", "serving.knative.dev/route": "hello"}, "kept"
		if diff := cmp.Diff(want, w.get(t, "hello")); diff != "" {
			t.Errorf("changed (-want +got):\n%s", diff)
		}
		if got := w.get(t, "v1-hello"); got != nil {
			t.Errorf("no longer desired, but exists: %v", got)
		}
		w.reconciled()
		if err := w.client.CoreV1().Services("default").Delete(t.Context(), "hello", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"hello"}, w.reconciled()); diff != "" {
			t.Errorf("reconciled after deletion by hand (-want +got):\n%s", diff)
		}
		w.apply(t, owner, "hello")
		// A later Route of the same name acquires the Service.
		w.apply(t, newOwner("later"), "hello")
		if diff := cmp.Diff(wanted("hello", "later").OwnerReferences, w.get(t, "hello").OwnerReferences); diff != "" {
			t.Errorf("owner (-want +got):\n%s", diff)
		}
	})
}

// TestLabelled checks that Labelled finds labels that users added to Services, but not labels that are copied from the object.
func TestLabelled(t *testing.T) {
	const key, value = "networking.knative.dev/visibility", "cluster-local"
	run(t, func(t *testing.T, w *fixture) {
		owner := newOwner("u")
		w.apply(t, owner, "hello", "v1-hello")
		labelled := w.get(t, "v1-hello")
		labelled.Labels[key] = value
		if _, err := w.client.CoreV1().Services("default").Update(t.Context(), labelled, metav1.UpdateOptions{FieldManager: "kubectl-label"}); err != nil {
			t.Fatal(err)
		}
		w.apply(t, owner, "hello", "v1-hello")
		if got, err := w.services.Labelled(owner, key, value); err != nil || len(got) != 1 || got[0] != "v1-hello" {
			t.Errorf("labelled are %v, %v; want v1-hello", got, err)
		}
		other := newOwner("other")
		other.Name, other.Labels = "other", map[string]string{key: value}
		w.apply(t, other, "other")
		if got, err := w.services.Labelled(other, key, value); err != nil || len(got) != 0 {
			t.Errorf("labelled are %v, %v; want no copies", got, err)
		}
	})
}

// TestForget checks that the wait for names of other owners ends with the object that waits.
func TestForget(t *testing.T) {
	run(t, func(t *testing.T, w *fixture) {
		for _, name := range []string{"hello", "v1-hello"} {
			theirs := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1"}}
			if _, err := w.client.CoreV1().Services("default").Create(t.Context(), theirs, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		owner := newOwner("u")
		for _, names := range [][]string{{"hello", "v1-hello"}, {"hello"}} {
			if err := w.services.Apply(t.Context(), owner, names); err == nil {
				t.Fatal("the names of other owners are used")
			}
			if got := len(w.services.waiting); got != len(names) {
				t.Errorf("waiting for %d names, want %v", got, names)
			}
		}
		w.services.Forget(keyOf(owner))
		if got := len(w.services.waiting); got != 0 {
			t.Errorf("waiting for %d names after the object was deleted", got)
		}
	})
}

// TestNotOwned checks that Services of other owners are not changed, that the others are created, and that the
// object is enqueued when a name becomes free.
func TestNotOwned(t *testing.T) {
	theirs := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "hello"}, Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1"}}
	run(t, func(t *testing.T, w *fixture) {
		err := w.services.Apply(t.Context(), newOwner("u"), []string{"hello", "v1-hello"})
		notOwned, ok := errors.AsType[*NotOwned](err)
		if !ok || notOwned.Service.Name != "hello" {
			t.Fatalf("got %v, want NotOwned of hello", err)
		}
		const message = `There is a core Service "default/hello" already that does not belong to the Route. Delete it, or give the Route another name.`
		if err.Error() != message {
			t.Errorf("message: %s", err)
		}
		if got := w.get(t, "hello"); got.Spec.ClusterIP != "10.0.0.1" || len(got.OwnerReferences) > 0 {
			t.Errorf("it is now %v", got)
		}
		if w.get(t, "v1-hello") == nil {
			t.Error("the other one was not created")
		}
		w.reconciled()
		if err := w.client.CoreV1().Services("default").Delete(t.Context(), "hello", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"hello"}, w.reconciled()); diff != "" {
			t.Errorf("reconciled (-want +got):\n%s", diff)
		}
		w.apply(t, newOwner("u"), "hello", "v1-hello")
		if diff := cmp.Diff(wanted("hello", "u"), w.get(t, "hello")); diff != "" {
			t.Errorf("free (-want +got):\n%s", diff)
		}
	}, theirs)
}

// TestApplyBehindTheInformer checks that a Service that the informer does not have yet is read from the server.
func TestApplyBehindTheInformer(t *testing.T) {
	for name, tt := range map[string]struct {
		there    *corev1.Service
		notOwned bool
	}{
		"own":    {wanted("hello", "u"), false},
		"theirs": {&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "hello"}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(tt.there)
			informer, err := NewInformer(client)
			if err != nil {
				t.Fatal(err)
			}
			services, err := New(Options{
				Client: client.CoreV1(), Informer: informer, Kind: servingv1.SchemeGroupVersion.WithKind("Route"),
				LabelKey: "serving.knative.dev/route", Target: target,
			})
			if err != nil {
				t.Fatal(err)
			}
			err = services.Apply(t.Context(), newOwner("u"), []string{"hello"})
			if _, notOwned := errors.AsType[*NotOwned](err); notOwned != tt.notOwned || !notOwned && err != nil {
				t.Errorf("got %v, want NotOwned %v", err, tt.notOwned)
			}
		})
	}
}

// TestApplyFails checks that other errors take precedence over names of other owners: they are retried, while names wait for a change.
func TestApplyFails(t *testing.T) {
	theirs := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "hello"}}
	run(t, func(t *testing.T, w *fixture) {
		broken := errors.New("broken")
		w.client.PrependReactor("create", "services", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, broken })
		err := w.services.Apply(t.Context(), newOwner("u"), []string{"hello", "v1-hello"})
		if _, notOwned := errors.AsType[*NotOwned](err); notOwned || !errors.Is(err, broken) {
			t.Errorf("got %v, want only %v", err, broken)
		}
	}, theirs)
}
