package garbage

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/internal/controllertest"
)

// object returns an object of a served kind with owners; its UID is kind/name.
func object(kind, name string, owners ...metav1.OwnerReference) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{
		TypeMeta: metav1.TypeMeta{APIVersion: servingv1.SchemeGroupVersion.String(), Kind: kind},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: types.UID(kind + "/" + name), ResourceVersion: "1", OwnerReferences: owners,
		},
	}
}

// terminating returns an object that is being deleted and has a finalizer.
func terminating(finalizer string, obj *metav1.PartialObjectMetadata) *metav1.PartialObjectMetadata {
	obj.DeletionTimestamp = ptr.To(metav1.Unix(1, 0))
	obj.Finalizers = []string{finalizer, "example.com/mine"}
	return obj
}

// ref refers to an object as its controller.
func ref(kind, name string) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: servingv1.SchemeGroupVersion.String(), Kind: kind, Name: name, UID: types.UID(kind + "/" + name),
		Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
	}
}

// foreign refers to an object of a kind that this server does not serve.
func foreign() metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "x", UID: "x"}
}

// fixture is a collector, with a server and informers that have some of its objects.
type fixture struct {
	*Reconciler
	client *metadatafake.FakeMetadataClient
}

func newFixture(t *testing.T, stored, unknown []*metav1.PartialObjectMetadata) fixture {
	t.Helper()
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	var objects []runtime.Object
	for _, obj := range append(stored[:len(stored):len(stored)], unknown...) {
		objects = append(objects, obj)
	}
	w := fixture{client: metadatafake.NewSimpleMetadataClient(scheme, objects...)}
	w.Reconciler = newReconciler(w.client)
	for _, resource := range Resources()[:4] {
		w.add(resource, cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{byOwner: ownersOf}))
	}
	for _, obj := range stored {
		if err := w.kindOf(ref(obj.Kind, obj.Name)).objects.Add(obj); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func (w fixture) reconcile(t *testing.T, obj *metav1.PartialObjectMetadata) error {
	t.Helper()
	return controllertest.Reconcile(t.Context(), w, w.kindOf(ref(obj.Kind, obj.Name)).key(obj.Namespace, obj.Name))
}

// writes returns the writes, such as "delete services a Background", "patch routes b {...}".
func (w fixture) writes(t *testing.T) []string {
	t.Helper()
	var writes []string
	for _, action := range w.client.Actions() {
		switch action := action.(type) {
		case clienttesting.DeleteActionImpl:
			options := action.DeleteOptions
			if p := options.Preconditions; p == nil || p.UID == nil || p.ResourceVersion == nil || *p.ResourceVersion != "1" {
				t.Errorf("deletion of %s has preconditions %v", action.Name, p)
			}
			writes = append(writes, "delete "+action.Resource.Resource+" "+action.Name+" "+string(*options.PropagationPolicy))
		case clienttesting.PatchActionImpl:
			writes = append(writes, "patch "+action.Resource.Resource+" "+action.Name+" "+string(action.Patch))
		}
	}
	return writes
}

// An object is deleted once no owner keeps it, which the server confirms (serving 7.0.1-4). While others keep it, its references to
// deleted owners are removed.
func TestCollect(t *testing.T) {
	type objects = []*metav1.PartialObjectMetadata
	service, configuration := object("Service", "a"), object("Configuration", "a", ref("Service", "a"))
	recreated := object("Service", "a")
	recreated.UID = "another"
	orphaning := object("Configuration", "a", ref("Service", "a"))
	orphaning.Finalizers = []string{metav1.FinalizerOrphanDependents}
	for name, test := range map[string]struct {
		subject         *metav1.PartialObjectMetadata
		stored, unknown objects
		want            []string
	}{
		"owner there":                        {configuration, objects{service}, nil, nil},
		"owner gone":                         {configuration, nil, nil, []string{"delete configurations a Background"}},
		"owner deleted, name in use":         {configuration, objects{recreated}, nil, []string{"delete configurations a Background"}},
		"owner not in the informer yet":      {configuration, nil, objects{service}, nil},
		"owner of a kind that is not served": {object("Configuration", "a", foreign()), nil, nil, nil},
		"no owner":                           {object("Configuration", "a"), nil, nil, nil},
		"one owner of two is deleted":        {object("Route", "a", ref("Service", "b"), foreign()), nil, nil, []string{`patch routes a {"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"x","uid":"x"}],"resourceVersion":"1","uid":"Route/a"}}`}},
		"both owners are deleted":            {object("Route", "a", ref("Service", "b"), ref("Configuration", "b")), nil, nil, []string{"delete routes a Background"}},
		"its dependents are orphaned":        {orphaning, nil, nil, []string{"delete configurations a Orphan"}},
		"owner waits for it": {configuration, objects{terminating(metav1.FinalizerDeleteDependents, object("Service", "a"))}, nil,
			[]string{"delete configurations a Background"}},
		"owner waits for it and its dependents": {configuration, objects{terminating(metav1.FinalizerDeleteDependents, object("Service", "a")), object("Revision", "a-1", ref("Configuration", "a"))}, nil,
			[]string{"delete configurations a Foreground"}},
		"owner waits for it and depends on it": {configuration, objects{terminating(metav1.FinalizerDeleteDependents, object("Service", "a", ref("Configuration", "a")))}, nil,
			[]string{"delete configurations a Background"}},
		"owner waits for another finalizer": {configuration, objects{terminating("example.com/other", object("Service", "a"))}, nil, nil},
		"being deleted already":             {terminating("example.com/other", object("Configuration", "a", ref("Service", "a"))), nil, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, append(objects{test.subject}, test.stored...), test.unknown)
			if err := w.reconcile(t, test.subject); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, w.writes(t)); diff != "" {
				t.Errorf("writes (-want +got):\n%s", diff)
			}
		})
	}
}

// Foreground deletion ends when no dependent blocks it; other dependents are not awaited.
func TestForeground(t *testing.T) {
	owner := terminating(metav1.FinalizerDeleteDependents, object("Service", "a"))
	blocking := object("Configuration", "a", ref("Service", "a"))
	free := object("Route", "a", metav1.OwnerReference{APIVersion: servingv1.SchemeGroupVersion.String(), Kind: "Service", Name: "a", UID: owner.UID})
	done := []string{`patch services a {"metadata":{"finalizers":["example.com/mine"],"resourceVersion":"1","uid":"Service/a"}}`}
	for name, test := range map[string]struct {
		dependent *metav1.PartialObjectMetadata
		want      []string
	}{
		"blocked":     {blocking, nil},
		"not blocked": {free, done},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, []*metav1.PartialObjectMetadata{owner, test.dependent}, nil)
			if err := w.reconcile(t, owner); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, w.writes(t)); diff != "" {
				t.Errorf("writes (-want +got):\n%s", diff)
			}
		})
	}
}

// Orphans lose the reference to their owner before it is deleted, also orphans that the informers do not have yet. If one cannot be
// changed, the owner stays.
func TestOrphan(t *testing.T) {
	owner := terminating(metav1.FinalizerOrphanDependents, object("Service", "a"))
	known, unknown := object("Configuration", "a", ref("Service", "a"), foreign()), object("Route", "a", ref("Service", "a"))
	forget := []string{
		`patch configurations a {"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"x","uid":"x"}],"resourceVersion":"1","uid":"Configuration/a"}}`,
		`patch routes a {"metadata":{"ownerReferences":[],"resourceVersion":"1","uid":"Route/a"}}`,
	}
	finalized := `patch services a {"metadata":{"finalizers":["example.com/mine"],"resourceVersion":"1","uid":"Service/a"}}`

	w := newFixture(t, []*metav1.PartialObjectMetadata{owner, known}, []*metav1.PartialObjectMetadata{unknown})
	if err := w.reconcile(t, owner); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(append(forget[:2:2], finalized), w.writes(t)); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}

	w = newFixture(t, []*metav1.PartialObjectMetadata{owner, known}, []*metav1.PartialObjectMetadata{unknown})
	w.client.PrependReactor("patch", "routes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewConflict(servingv1.Resource("routes"), "a", errors.New("changed"))
	})
	if err := w.reconcile(t, owner); !apierrors.IsConflict(err) {
		t.Errorf("got error %v, want a Conflict", err)
	}
	if diff := cmp.Diff(forget, w.writes(t)); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
}

// A deleted owner is looked up once, regardless of the number of its dependents. If the server does not respond, nothing is
// deleted, and an object that no longer exists is not an error.
func TestServerAnswers(t *testing.T) {
	one, two := object("Revision", "a-1", ref("Configuration", "a")), object("Revision", "a-2", ref("Configuration", "a"))
	w := newFixture(t, []*metav1.PartialObjectMetadata{one, two}, nil)
	w.client.PrependReactor("delete", "revisions", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewNotFound(servingv1.Resource("revisions"), "a")
	})
	for _, obj := range []*metav1.PartialObjectMetadata{one, two} {
		if err := w.reconcile(t, obj); err != nil {
			t.Error(err)
		}
	}
	asked := 0
	for _, action := range w.client.Actions() {
		if action.GetVerb() == "get" {
			asked++
		}
	}
	if asked != 1 {
		t.Errorf("looked up the owner %d times, want once", asked)
	}

	w = newFixture(t, []*metav1.PartialObjectMetadata{one}, nil)
	w.client.PrependReactor("get", "configurations", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewInternalError(errors.New("etcd"))
	})
	if err := w.reconcile(t, one); !apierrors.IsInternalError(err) {
		t.Errorf("got error %v, want the server's", err)
	}
	if writes := w.writes(t); len(writes) > 0 {
		t.Errorf("writes: %v", writes)
	}
}

// A change affects the object itself, its dependents when it is deleted or waits for them, and its owners while they wait, and no other object.
func TestConcerned(t *testing.T) {
	service := object("Service", "a")
	configuration := object("Configuration", "a", ref("Service", "a"))
	revision := object("Revision", "a-1", ref("Configuration", "a"))
	waiting := terminating(metav1.FinalizerDeleteDependents, object("Configuration", "a", ref("Service", "a")))
	type objects = []*metav1.PartialObjectMetadata
	for name, test := range map[string]struct {
		changed *metav1.PartialObjectMetadata
		stored  objects
		want    []string
	}{
		"an owner":              {service, objects{service, configuration, revision}, nil},
		"an owned owner":        {configuration, objects{service, configuration, revision}, []string{"configurations.serving.knative.dev/a"}},
		"a deleted owner":       {configuration, objects{service, revision}, []string{"configurations.serving.knative.dev/a", "revisions.serving.knative.dev/a-1"}},
		"an owner that waits":   {waiting, objects{service, waiting, revision}, []string{"configurations.serving.knative.dev/a", "revisions.serving.knative.dev/a-1"}},
		"a deleted dependent":   {revision, objects{service, waiting}, []string{"configurations.serving.knative.dev/a", "revisions.serving.knative.dev/a-1"}},
		"an existing dependent": {revision, objects{service, configuration, revision}, []string{"revisions.serving.knative.dev/a-1"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newFixture(t, test.stored, nil)
			var got []string
			for _, key := range w.concerned(w.kindOf(ref(test.changed.Kind, "")))(test.changed) {
				got = append(got, key.Name)
			}
			if diff := cmp.Diff(test.want, got, cmpopts.SortSlices(strings.Compare)); diff != "" {
				t.Errorf("keys (-want +got):\n%s", diff)
			}
		})
	}
}

// The controller watches all kinds: the dependents of a deleted owner are deleted.
func TestWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := &servingv1.Service{ObjectMeta: object("Service", "a").ObjectMeta}
		w := controllertest.New(t, service,
			&servingv1.Configuration{ObjectMeta: object("Configuration", "a", ref("Service", "a")).ObjectMeta},
			&messagingv1.Subscription{ObjectMeta: object("Subscription", "a", ref("Service", "a")).ObjectMeta})
		server := newFixture(t, nil, nil)
		controller, err := New(server.client, func(resource schema.GroupVersionResource) (cache.SharedIndexInformer, error) {
			generic, err := w.Factory.ForResource(resource)
			if err != nil {
				return nil, err
			}
			return generic.Informer(), nil
		}, Resources())
		if err != nil {
			t.Fatal(err)
		}
		w.Run(controller, func() {
			if writes := server.writes(t); len(writes) > 0 {
				t.Fatalf("writes: %v", writes)
			}
			if err := w.Client.ServingV1().Services(service.Namespace).Delete(t.Context(), service.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			want := []string{"delete configurations a Background", "delete subscriptions a Background"}
			if diff := cmp.Diff(want, server.writes(t), cmpopts.SortSlices(strings.Compare)); diff != "" {
				t.Errorf("writes (-want +got):\n%s", diff)
			}
		})
	})
}
