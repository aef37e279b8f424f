package standalone

import (
	"context"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestUsersCannotCreateRevisions checks that only Configurations create Revisions (serving 5.3-1). No other user may, with any
// permissions and any impersonated name.
func TestUsersCannotCreateRevisions(t *testing.T) {
	k := harness.KindOf("Revision")
	users := map[string]*harness.Clients{
		"administrator":                 admin,
		"the controllers' name":         admin.As(t, "system:knative:controllers", "system:masters"),
		"the apiserver's name":          admin.As(t, "system:apiserver", "system:masters"),
		"the controllers' account":      admin.As(t, "system:serviceaccount:knative-system:knative-apiserver", "system:masters"),
		"the controllers' name as such": admin.As(t, "system:knative:controllers"),
	}
	for name, user := range users {
		for _, way := range createWays() {
			for _, query := range []string{"", "dryRun=All"} {
				t.Run(name+"/"+way.name+"/"+query, func(t *testing.T) {
					obj := k.Object(namespace(t), "a")
					request := way.request(obj, pathOf(obj), nil)
					request.Path = withQuery(request.Path, query)
					status := wantStatus(t, user.Do(t, request), http.StatusForbidden, metav1.StatusReasonForbidden)
					if name != "the controllers' name as such" { // that one has no permissions
						wantMessage(t, status, "Revisions come from Configurations")
					}
					response := admin.Do(t, harness.Request{Method: "GET", Path: pathOf(obj)})
					wantStatus(t, response, http.StatusNotFound, metav1.StatusReasonNotFound)
				})
			}
		}
	}
}

func withQuery(path, query string) string {
	if query == "" {
		return path
	}
	for _, c := range path {
		if c == '?' {
			return path + "&" + query
		}
	}
	return path + "?" + query
}

func TestUsersCannotCreateRevisionsByGenerateName(t *testing.T) {
	k := harness.KindOf("Revision")
	obj := k.Object(namespace(t), "")
	obj.SetGenerateName("a-")
	response := admin.Do(t, harness.Request{Method: "POST", Path: k.Collection(obj.GetNamespace()), Body: obj})
	wantMessage(t, wantStatus(t, response, http.StatusForbidden, metav1.StatusReasonForbidden), "Revisions come from Configurations")
}

// TestInvalidRevisionsAreForbiddenToo checks that the response is independent of the object, so it does not disclose how to
// make a valid one.
func TestInvalidRevisionsAreForbiddenToo(t *testing.T) {
	obj := harness.KindOf("Revision").Object(namespace(t), "a")
	set(obj, []any{}, "spec", "containers")
	for _, way := range createWays() {
		wantStatus(t, way.create(t, obj), http.StatusForbidden, metav1.StatusReasonForbidden)
	}
}

// TestTheSpecOfARevisionIsImmutable checks that the spec of a Revision never changes, and that the response shows the attempted
// change (serving 5.3-1).
func TestTheSpecOfARevisionIsImmutable(t *testing.T) {
	k := harness.KindOf("Revision")
	container := object{"name": "user-container", "image": "registry.example.com/other"}
	for _, way := range updateWays() {
		t.Run(way.name, func(t *testing.T) {
			before := stored(t, k)
			status := wantInvalid(t, way.update(t, before, object{"spec": object{"containers": []any{container}, "timeoutSeconds": int64(77)}}), "FieldValueForbidden spec")
			wantMessage(t, status, "registry.example.com/hello", "registry.example.com/other", "300", "77")
			wantSame(t, before, reread(t, before))
		})
	}
}

func TestTheMetadataOfARevisionChanges(t *testing.T) {
	k := harness.KindOf("Revision")
	for _, way := range updateWays() {
		t.Run(way.name, func(t *testing.T) {
			before := stored(t, k)
			way.update(t, before, object{"metadata": object{
				"labels":      object{"team": "orders"},
				"annotations": object{"serving.knative.dev/no-gc": "true"},
			}}).Object(t)
			after := reread(t, before)
			if after.GetLabels()["team"] != "orders" || after.GetAnnotations()["serving.knative.dev/no-gc"] != "true" {
				t.Errorf("metadata is %v", after.Object["metadata"])
			}
			if diff := cmp.Diff(before.Object["spec"], after.Object["spec"]); diff != "" || after.GetGeneration() != 1 {
				t.Errorf("generation %d, spec (-before +after):\n%s", after.GetGeneration(), diff)
			}
		})
	}
}

// TestUsersDeleteRevisions covers serving 5.3-3 and 5.3-4.
func TestUsersDeleteRevisions(t *testing.T) {
	k := harness.KindOf("Revision")
	obj := stored(t, k)
	response := admin.Do(t, harness.Request{Method: "DELETE", Path: pathOf(obj)})
	if response.Code != http.StatusOK {
		t.Fatalf("code %d: %s", response.Code, response.Body)
	}
	wantStatus(t, admin.Do(t, harness.Request{Method: "GET", Path: pathOf(obj)}), http.StatusNotFound, metav1.StatusReasonNotFound)
	// A deleted Revision cannot be restored by a user.
	for _, way := range createWays() {
		recreated := k.Object(obj.GetNamespace(), obj.GetName())
		wantStatus(t, way.create(t, recreated), http.StatusForbidden, metav1.StatusReasonForbidden)
	}
}

// TestControllers checks that the client of the controllers has permissions that users do not have.
func TestControllers(t *testing.T) {
	err := asControllers(t.TempDir(), func(ctx context.Context, c *harness.Clients) error {
		revision := harness.KindOf("Revision").Object("shop", "a-00001")
		revision.SetAnnotations(map[string]string{"serving.knative.dev/creator": "alice"})
		if err := create(ctx, c, revision); err != nil {
			return err
		}
		response, err := c.Send(ctx, harness.Request{Method: "GET", Path: pathOf(revision)})
		if err != nil {
			return err
		}
		live := response.Object(t)
		if got := live.GetAnnotations()["serving.knative.dev/creator"]; got != "alice" {
			t.Errorf("the creator is %q; it must be the value that the controllers copied", got)
		}
		// Not even the controllers may change a spec.
		response, err = c.Send(ctx, harness.Request{Method: "PATCH", Path: pathOf(revision), ContentType: mergePatch, Body: object{"spec": object{"timeoutSeconds": 1}}})
		if err != nil {
			return err
		}
		wantInvalid(t, response, "FieldValueForbidden spec")

		channel := harness.KindOf("Channel").Object("shop", "a")
		if err := create(ctx, c, channel); err != nil {
			return err
		}
		response, err = c.Send(ctx, harness.Request{Method: "PATCH", Path: pathOf(channel), ContentType: mergePatch, Body: object{
			"spec": object{"subscribers": []any{object{"uid": "1", "subscriberUri": "http://sink.example.com/"}}},
		}})
		if err != nil {
			return err
		}
		if got := len(field(response.Object(t), "spec", "subscribers").([]any)); got != 1 {
			t.Errorf("got %d subscribers, want 1", got)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestUsersCannotWriteSubscribers checks that only the controllers write subscribers (eventing Channel-1).
func TestUsersCannotWriteSubscribers(t *testing.T) {
	k := harness.KindOf("Channel")
	spec := object{"subscribers": []any{object{"uid": "2", "subscriberUri": "http://forged.example.com/"}}}
	for _, way := range updateWays() {
		t.Run(way.name, func(t *testing.T) {
			before := stored(t, k)
			wantInvalid(t, way.update(t, before, object{"spec": spec}), "FieldValueForbidden spec.subscribers")
			wantSame(t, before, reread(t, before))

			subscribed := get(t, k, controllersNamespace, subscribedChannel)
			wantInvalid(t, way.update(t, subscribed, object{"spec": spec}), "FieldValueForbidden spec.subscribers")
			wantSame(t, subscribed, reread(t, subscribed))
		})
	}
	for _, way := range createWays() {
		t.Run(way.name, func(t *testing.T) {
			obj := k.Object(namespace(t), "a")
			obj.Object["spec"] = spec
			wantInvalid(t, way.create(t, obj), "FieldValueForbidden spec.subscribers")
		})
	}
	t.Run("leaving them out", func(t *testing.T) {
		before := get(t, k, controllersNamespace, subscribedChannel)
		obj := before.DeepCopy()
		unstructured.RemoveNestedField(obj.Object, "spec", "subscribers")
		admin.Do(t, harness.Request{Method: "PUT", Path: pathOf(obj), Body: obj}).Object(t)
		after := reread(t, before)
		if diff := cmp.Diff(before.Object["spec"], after.Object["spec"]); diff != "" || before.GetGeneration() != after.GetGeneration() {
			t.Errorf("generation %d, want %d; spec (-before +after):\n%s", after.GetGeneration(), before.GetGeneration(), diff)
		}
	})
	t.Run("another user", func(t *testing.T) {
		obj := get(t, k, controllersNamespace, subscribedChannel)
		forger := admin.As(t, "system:knative:controllers", "system:masters")
		wantInvalid(t, forger.Do(t, harness.Request{Method: "PATCH", Path: pathOf(obj), ContentType: mergePatch, Body: object{"spec": spec}}),
			"FieldValueForbidden spec.subscribers")
	})
	t.Run("unchanged subscribers", func(t *testing.T) {
		obj := get(t, k, controllersNamespace, subscribedChannel)
		admin.Do(t, harness.Request{Method: "PATCH", Path: pathOf(obj), ContentType: mergePatch, Body: label("user")}).Object(t)
		admin.Do(t, harness.Request{Method: "PATCH", Path: pathOf(obj), ContentType: mergePatch, Body: object{"spec": object{"delivery": object{"retry": 1}}}}).Object(t)
		if diff := cmp.Diff(field(obj, "spec", "subscribers"), field(reread(t, obj), "spec", "subscribers")); diff != "" {
			t.Errorf("subscribers (-before +after):\n%s", diff)
		}
	})
}
