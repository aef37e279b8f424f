package standalone

import (
	"net/http"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

func remove(t testing.TB, obj *unstructured.Unstructured, options any) *harness.Response {
	t.Helper()
	return admin.Do(t, harness.Request{Method: "DELETE", Path: pathOf(obj), Body: options})
}

func wantGone(t testing.TB, obj *unstructured.Unstructured) {
	t.Helper()
	wantStatus(t, admin.Do(t, harness.Request{Method: "GET", Path: pathOf(obj)}), http.StatusNotFound, metav1.StatusReasonNotFound)
}

// TestDelete covers conventions Verbs-4, conventions Response Status-2.
func TestDelete(t *testing.T) {
	eachKind(t, func(t *testing.T, k harness.Kind) {
		obj := stored(t, k)
		status := remove(t, obj, nil).Status(t)
		if status.Status != metav1.StatusSuccess || status.Details.Name != obj.GetName() || status.Details.UID != obj.GetUID() || status.Details.Kind != k.Resource {
			t.Errorf("the answer is %+v, %+v", status, status.Details)
		}
		wantGone(t, obj)
		wantStatus(t, remove(t, obj, nil), http.StatusNotFound, metav1.StatusReasonNotFound)
	})
}

// TestFinalizers covers conventions Metadata-6 and -7.
func TestFinalizers(t *testing.T) {
	eachKind(t, func(t *testing.T, k harness.Kind) {
		obj := stored(t, k)
		patch := func(finalizers any) {
			t.Helper()
			admin.Do(t, harness.Request{Method: "PATCH", Path: pathOf(obj), ContentType: mergePatch, Body: object{"metadata": object{"finalizers": finalizers}}}).Object(t)
		}
		patch([]any{"example.com/one", "example.com/two"})
		w := startWatch(t, k, obj.GetNamespace(), metav1.ListOptions{FieldSelector: "metadata.name=" + obj.GetName(), ResourceVersion: reread(t, obj).GetResourceVersion()})
		if response := remove(t, obj, nil); response.Code/100 != 2 || response.Object(t).GetDeletionTimestamp() == nil {
			t.Fatalf("code %d: %s", response.Code, response.Body)
		}
		wantEvent(t, w, watch.Modified, obj.GetName())
		dying := reread(t, obj)
		if dying.GetDeletionTimestamp() == nil || dying.GetGeneration() != obj.GetGeneration()+1 {
			t.Errorf("deletionTimestamp %v, generation %d", dying.GetDeletionTimestamp(), dying.GetGeneration())
		}
		response := admin.Do(t, harness.Request{Method: "PATCH", Path: pathOf(obj), ContentType: mergePatch, Body: object{
			"metadata": object{"finalizers": []any{"example.com/one", "example.com/two", "example.com/three"}},
		}})
		wantInvalid(t, response, "FieldValueForbidden metadata.finalizers")
		patch([]any{"example.com/two"})
		wantEvent(t, w, watch.Modified, obj.GetName())
		reread(t, obj)
		patch(nil)
		wantEvent(t, w, watch.Deleted, obj.GetName())
		wantGone(t, obj)
	})
}

func TestPropagationPolicy(t *testing.T) {
	eachKind(t, func(t *testing.T, k harness.Kind) {
		for policy, finalizer := range map[string]string{"Orphan": "orphan", "Foreground": "foregroundDeletion"} {
			obj := stored(t, k)
			remove(t, obj, object{"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": policy})
			dying := reread(t, obj)
			if !slices.Equal(dying.GetFinalizers(), []string{finalizer}) || dying.GetDeletionTimestamp() == nil {
				t.Errorf("%s: finalizers %v, deletionTimestamp %v", policy, dying.GetFinalizers(), dying.GetDeletionTimestamp())
			}
			// The garbage collector finishes with this request.
			admin.Do(t, harness.Request{Method: "PATCH", Path: pathOf(obj), ContentType: mergePatch, Body: object{"metadata": object{"finalizers": nil}}}).Object(t)
			wantGone(t, obj)
		}
		obj := stored(t, k)
		response := admin.Do(t, harness.Request{Method: "DELETE", Path: pathOf(obj) + "?propagationPolicy=Nearby"})
		wantStatus(t, response, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
		remove(t, obj, object{"propagationPolicy": "Background"})
		wantGone(t, obj)
	})
}

func TestPreconditions(t *testing.T) {
	eachKind(t, func(t *testing.T, k harness.Kind) {
		obj := stored(t, k)
		preconditions := func(uid, version string) object {
			p := object{}
			if uid != "" {
				p["uid"] = uid
			}
			if version != "" {
				p["resourceVersion"] = version
			}
			return object{"preconditions": p}
		}
		const otherUID = "11111111-1111-1111-1111-111111111111"
		for _, tc := range []object{
			preconditions(otherUID, ""),
			preconditions("", "1"),
			preconditions(string(obj.GetUID()), "1"),
			preconditions(otherUID, obj.GetResourceVersion()),
		} {
			wantStatus(t, remove(t, obj, tc), http.StatusConflict, metav1.StatusReasonConflict)
			wantSame(t, obj, reread(t, obj))
		}
		// A write for another object of the same name is a conflict too.
		other := obj.DeepCopy()
		other.SetUID(otherUID)
		other.SetResourceVersion("")
		wantStatus(t, admin.Do(t, harness.Request{Method: "PUT", Path: pathOf(obj), Body: other}), http.StatusConflict, metav1.StatusReasonConflict)

		if response := remove(t, obj, preconditions(string(obj.GetUID()), obj.GetResourceVersion())); response.Code != http.StatusOK {
			t.Errorf("code %d: %s", response.Code, response.Body)
		}
		wantGone(t, obj)
	})
}
