package certmanager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2/ktesting"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/certs/hostcerts"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

const name = "route-uid"

var (
	issuer = settings.Issuer{Name: "letsencrypt", Kind: "ClusterIssuer", Group: "cert-manager.io"}
	owner  = hostcerts.Owner{Kind: "Route", Key: types.NamespacedName{Namespace: "default", Name: "hello"}}
	wanted = []Certificate{{Name: name, Host: "hello.example.com"}}
)

// route returns the Object of a Route.
func route() *Object {
	r := &servingv1.Route{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "hello", UID: "uid"}}
	return &Object{Meta: r, Kind: servingv1.SchemeGroupVersion.WithKind("Route"), Labels: map[string]string{"serving.knative.dev/route": "hello"}}
}

// definition returns the CustomResourceDefinition of Certificates.
func definition(established, served bool) *unstructured.Unstructured {
	status := "False"
	if established {
		status = "True"
	}
	d := &unstructured.Unstructured{Object: map[string]any{
		"spec":   map[string]any{"versions": []any{map[string]any{"name": "v1", "served": served, "schema": map[string]any{}}}},
		"status": map[string]any{"conditions": []any{map[string]any{"type": "Established", "status": status}}},
	}}
	d.SetGroupVersionKind(definitions.GroupVersion().WithKind("CustomResourceDefinition"))
	d.SetName(definitionName)
	return d
}

// conditions sets the conditions of a Certificate: type, status and message of each.
func conditions(c *unstructured.Unstructured, all ...[3]string) *unstructured.Unstructured {
	var list []any
	for _, one := range all {
		list = append(list, map[string]any{"type": one[0], "status": one[1], "message": one[2]})
	}
	c = c.DeepCopy()
	c.Object["status"] = map[string]any{"conditions": list}
	return c
}

// fixture is a running Manager.
type fixture struct {
	*Manager
	client *fake.FakeDynamicClient

	mu       sync.Mutex
	notified []hostcerts.Owner
}

func newFixture(t *testing.T, objects ...runtime.Object) *fixture {
	t.Helper()
	f := &fixture{client: fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{definitions: "CustomResourceDefinitionList", Resource: "CertificateList"}, objects...)}
	logger, _ := ktesting.NewTestContext(t)
	var err error
	if f.Manager, err = New(f.client, logger); err != nil {
		t.Fatal(err)
	}
	f.Subscribe(func(owner hostcerts.Owner) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.notified = append(f.notified, owner)
	})
	return f
}

// start runs the Manager in a bubble of synctest, until the test ends.
func (f *fixture) start(t *testing.T) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.Run(ctx)
	}()
	t.Cleanup(func() {
		stop()
		<-done
	})
	synctest.Wait()
}

// heard reports whether an owner has been notified since the last call.
func (f *fixture) heard(owner hostcerts.Owner) bool {
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	heard := slices.Contains(f.notified, owner)
	f.notified = nil
	return heard
}

// apply reads the state and writes.
func (f *fixture) apply(t *testing.T, o *Object, issuer settings.Issuer, wanted []Certificate) (map[string]State, error) {
	t.Helper()
	states := f.States(t.Context(), o, issuer, wanted)
	failed, err := f.Apply(t.Context(), o, issuer, wanted)
	for host, state := range failed {
		states[host] = state
	}
	synctest.Wait()
	return states, err
}

// stored returns the stored Certificate of a name, or nil.
func (f *fixture) stored(t *testing.T, name string) *unstructured.Unstructured {
	t.Helper()
	c, err := f.client.Resource(Resource).Namespace("default").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	if err != nil {
		return nil
	}
	return c
}

// writes returns the verbs of the writes since the last call.
func (f *fixture) writes() []string {
	var verbs []string
	for _, action := range f.client.Actions() {
		if v := action.GetVerb(); v != "get" && v != "list" && v != "watch" {
			verbs = append(verbs, v)
		}
	}
	f.client.ClearActions()
	return verbs
}

func test(t *testing.T, do func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, do)
}

// TestLifecycle covers a Certificate from its creation to its end, with a changed issuer and a new owner of the same name.
func TestLifecycle(t *testing.T) {
	test(t, func(t *testing.T) {
		f := newFixture(t, definition(true, true))
		f.start(t)
		states, err := f.apply(t, route(), issuer, wanted)
		if err != nil || states["hello.example.com"].Problem != "its Certificate of cert-manager has not been created yet" {
			t.Fatalf("%v, %v", states, err)
		}
		if !f.heard(owner) {
			t.Error("the owner is not notified of the created Certificate")
		}
		c := f.stored(t, name)
		if got := fmt.Sprint(c.Object["spec"]); got != fmt.Sprint(desired(route(), issuer, wanted[0]).Object["spec"]) || !strings.Contains(got, "hello.example.com") || !strings.Contains(got, "letsencrypt") {
			t.Errorf("the spec is %s", got)
		}
		if got := c.GetLabels(); got["serving.knative.dev/route"] != "hello" || got["networking.knative.dev/certificate-type"] != "external-domain" {
			t.Errorf("the labels are %v", got)
		}
		if _, err := f.apply(t, route(), issuer, wanted); err != nil || !slices.Equal(f.writes(), []string{"create"}) {
			t.Error("the same Certificate is written again")
		}

		ready := conditions(c, [3]string{"Ready", "True", "fine"})
		if err := unstructured.SetNestedField(ready.Object, int64(7), "spec", "revisionHistoryLimit"); err != nil {
			t.Fatal(err)
		}
		if _, err := f.client.Resource(Resource).Namespace("default").Update(t.Context(), ready, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if !f.heard(owner) {
			t.Error("the owner is not notified of the condition")
		}
		f.writes()
		other := issuer
		other.Name = "internal"
		if states, err := f.apply(t, route(), other, wanted); err != nil || states["hello.example.com"] != (State{}) || !slices.Equal(f.writes(), []string{"update"}) {
			t.Errorf("another issuer: %v, %v", states, err)
		}
		if got := fmt.Sprint(f.stored(t, name).Object["spec"]); !strings.Contains(got, "name:internal") || !strings.Contains(got, "revisionHistoryLimit:7") {
			t.Errorf("the spec is %s", got)
		}
		if _, err := f.apply(t, route(), settings.Issuer{}, wanted); err != nil || len(f.writes()) > 0 {
			t.Errorf("without an issuer the Certificate changes: %v", err)
		}

		recreated := route()
		recreated.Meta.SetUID("next")
		if _, err := f.apply(t, recreated, other, wanted); err != nil || metav1.GetControllerOf(f.stored(t, name)).UID != "next" {
			t.Errorf("a recreated owner does not get the Certificate: %v", err)
		}
		if _, err := f.apply(t, recreated, other, []Certificate{{Name: "another", Host: "b"}}); err != nil || f.stored(t, name) != nil || f.stored(t, "another") == nil {
			t.Errorf("the unwanted Certificate remains: %v", err)
		}
		if _, err := f.apply(t, recreated, other, nil); err != nil || f.stored(t, "another") != nil {
			t.Errorf("a Certificate remains: %v", err)
		}
	})
}

// TestNotOwned covers a name that belongs to another owner until that is gone.
func TestNotOwned(t *testing.T) {
	test(t, func(t *testing.T) {
		foreign := desired(route(), issuer, wanted[0])
		foreign.SetOwnerReferences(nil)
		f := newFixture(t, definition(true, true), foreign)
		f.start(t)
		states, err := f.apply(t, route(), issuer, wanted)
		if err != nil || !states["hello.example.com"].NotOwned || len(f.writes()) > 0 {
			t.Errorf("%v, %v", states, err)
		}
		if _, err := f.apply(t, route(), issuer, nil); err != nil || len(f.writes()) > 0 {
			t.Errorf("the Certificate of another owner is deleted: %v", err)
		}
		f.States(t.Context(), route(), issuer, wanted)
		f.heard(owner)
		if err := f.client.Resource(Resource).Namespace("default").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if !f.heard(owner) {
			t.Error("the object that wants the name is not notified")
		}
		f.Forget(owner)
		if len(f.wanted)+len(f.byOwner) > 0 {
			t.Errorf("left behind: %v, %v", f.wanted, f.byOwner)
		}
	})
}

// TestNotListed covers a Certificate of another owner that the list does not have yet.
func TestNotListed(t *testing.T) {
	test(t, func(t *testing.T) {
		foreign := desired(route(), issuer, wanted[0])
		foreign.SetOwnerReferences(nil)
		f := newFixture(t, definition(true, true), foreign)
		f.client.PrependReactor("list", "certificates", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "cert-manager.io/v1", "kind": "CertificateList"}}, nil
		})
		f.client.PrependWatchReactor("certificates", func(clienttesting.Action) (bool, apiwatch.Interface, error) { return true, apiwatch.NewFake(), nil })
		f.start(t)
		states, err := f.apply(t, route(), issuer, wanted)
		if writes := f.writes(); err != nil || !states["hello.example.com"].NotOwned || !slices.Equal(writes, []string{"create"}) {
			t.Errorf("%v, %v, writes %v", states, err, writes)
		}
	})
}

// TestAPI covers clusters without cert-manager, a later installation, its removal, and clusters that do not answer.
func TestAPI(t *testing.T) {
	test(t, func(t *testing.T) {
		f := newFixture(t)
		state := func() State { return f.States(t.Context(), route(), issuer, wanted)["hello.example.com"] }
		f.start(t)
		if got := state(); !got.Failed || got.Problem != "the cluster does not serve certificates.cert-manager.io/v1 of cert-manager" {
			t.Errorf("without the API: %+v", got)
		}
		if _, err := f.apply(t, route(), issuer, wanted); err != nil || len(f.writes()) > 0 {
			t.Errorf("without the API: %v", err)
		}
		f.heard(owner)
		crds := f.client.Resource(definitions)
		if _, err := crds.Create(t.Context(), definition(false, true), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := state(); !got.Failed {
			t.Errorf("before the API is established: %+v", got)
		}
		if _, err := crds.Update(t.Context(), definition(true, true), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if !f.heard(owner) {
			t.Error("the owner is not notified of the API")
		}
		if _, err := f.apply(t, route(), issuer, wanted); err != nil || f.stored(t, name) == nil {
			t.Errorf("with the API: %v", err)
		}
		f.heard(owner)
		if err := crds.Delete(t.Context(), definitionName, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if !f.heard(owner) || !state().Failed {
			t.Errorf("after the API is gone: %+v", state())
		}
	})
	for resource, problem := range map[string]string{"customresourcedefinitions": "unreachable", "certificates": "unreachable"} {
		test(t, func(t *testing.T) {
			f := newFixture(t, definition(true, true))
			f.client.PrependReactor("list", resource, func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, errors.New("unreachable")
			})
			f.start(t)
			got := f.States(t.Context(), route(), issuer, wanted)["hello.example.com"]
			if got.Failed || !strings.HasPrefix(got.Problem, "cert-manager's Certificates cannot be read: ") || !strings.Contains(got.Problem, problem) {
				t.Errorf("%s cannot be listed: %+v", resource, got)
			}
		})
	}
}

// TestRefused covers writes that the cluster refuses.
func TestRefused(t *testing.T) {
	for name, test := range map[string]struct {
		err    error
		failed bool
	}{
		"forbidden": {apierrors.NewForbidden(Resource.GroupResource(), name, errors.New("no quota")), true},
		"webhook":   {apierrors.NewInternalError(errors.New(strings.Repeat("webhook ", 1000))), false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, definition(true, true))
				f.client.PrependReactor("create", "certificates", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, test.err })
				f.start(t)
				states, err := f.apply(t, route(), issuer, wanted)
				if got := states["hello.example.com"]; !errors.Is(err, test.err) || got.Failed != test.failed || got.Problem == "" || len(got.Problem) > maxMessage {
					t.Errorf("%+v, %v", got, err)
				}
			})
		})
	}
}

// TestStateOf covers what cert-manager reports.
func TestStateOf(t *testing.T) {
	long := strings.Repeat("é", maxMessage)
	for name, test := range map[string]struct {
		conditions [][3]string
		generation int64
		want       State
	}{
		"none":           {want: State{Problem: "cert-manager has not processed its Certificate yet"}},
		"ready":          {conditions: [][3]string{{"Ready", "True", "up to date"}}},
		"issuing":        {conditions: [][3]string{{"Ready", "False", "no Secret"}, {"Issuing", "True", "no Secret"}}, want: State{Problem: `cert-manager reports "no Secret"`}},
		"failed":         {conditions: [][3]string{{"Ready", "False", "no Secret"}, {"Issuing", "False", "denied"}}, want: State{Problem: `cert-manager reports "no Secret"; "denied"`, Failed: true}},
		"renewal failed": {conditions: [][3]string{{"Ready", "True", "up to date"}, {"Issuing", "False", "denied"}}, want: State{Problem: `cert-manager reports "denied"`, Failed: true}},
		"long":           {conditions: [][3]string{{"Ready", "False", long}}, want: State{Problem: fmt.Sprintf("cert-manager reports %q", long[:maxMessage-4]+"...")}},
	} {
		t.Run(name, func(t *testing.T) {
			c := conditions(desired(route(), issuer, wanted[0]), test.conditions...)
			if got := stateOf(c); got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
	c := desired(route(), issuer, wanted[0])
	c.SetGeneration(2)
	c.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": "True", "observedGeneration": int64(1)}}}
	if got := stateOf(c); got.Problem != "cert-manager has not processed the last change of its Certificate yet" {
		t.Errorf("ready before the last change: %+v", got)
	}
}

// TestTrimmed covers the memory for Certificates of others.
func TestTrimmed(t *testing.T) {
	foreign := conditions(desired(route(), issuer, wanted[0]), [3]string{"Ready", "True", "x"})
	foreign.SetOwnerReferences(nil)
	small, err := trimmed(foreign)
	if err != nil {
		t.Fatal(err)
	}
	if c := small.(*unstructured.Unstructured); c.Object["spec"] != nil || c.Object["status"] != nil || c.GetName() != name {
		t.Errorf("kept %v", c.Object)
	}
}

// TestStandalone covers a server without a cluster.
func TestStandalone(t *testing.T) {
	if got := (Standalone{}).States(t.Context(), route(), issuer, wanted)["hello.example.com"]; !got.Failed || !strings.Contains(got.Problem, "without a cluster") {
		t.Errorf("%+v", got)
	}
}
