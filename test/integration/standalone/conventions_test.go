package standalone

import (
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestVerbs sends each verb once to each kind that users create.
func TestVerbs(t *testing.T) {
	eachUserKind(t, func(t *testing.T, k harness.Kind) {
		ns := namespace(t)
		collection, path := k.Collection(ns), k.Path(ns, "a")
		versions := map[string]bool{}
		// do returns the object in a response. Each object has these fields, and each write another resourceVersion
		// (conventions Types-7 and -9, conventions Metadata-1, -3 and -5, conventions Concurrency-1, conventions Serialization-3).
		do := func(request harness.Request, code int) *unstructured.Unstructured {
			t.Helper()
			response := admin.Do(t, request)
			if response.Code != code {
				t.Fatalf("%s %s: code %d, want %d: %s", request.Method, request.Path, response.Code, code, response.Body)
			}
			obj := response.Object(t)
			if obj.GetKind() != k.Kind || obj.GetAPIVersion() != k.GroupVersion().String() || obj.GetNamespace() != ns || obj.GetName() != "a" || obj.GetUID() == "" {
				t.Errorf("%s: %s %s %s/%s %s", request.Method, obj.GetAPIVersion(), obj.GetKind(), obj.GetNamespace(), obj.GetName(), obj.GetUID())
			}
			if _, err := time.Parse(time.RFC3339, field(obj, "metadata", "creationTimestamp").(string)); err != nil {
				t.Errorf("%s: %v", request.Method, err)
			}
			version := obj.GetResourceVersion()
			if versions[version] != (request.Method == "GET") {
				t.Errorf("%s: resourceVersion %q, after %v", request.Method, version, versions)
			}
			versions[version] = true
			return obj
		}
		// conventions Verbs-2 and -3, conventions HTTP Status Codes-1 and -2
		labelled := k.Object(ns, "a")
		labelled.SetLabels(map[string]string{"tier": "front"})
		labelled.SetAnnotations(map[string]string{"note": "text"})
		created := do(harness.Request{Method: "POST", Path: collection, Body: labelled}, http.StatusCreated)
		do(harness.Request{Method: "GET", Path: path}, http.StatusOK)
		// conventions Verbs-6, conventions PATCH-1 to -3
		for mediaType, patch := range map[string]string{
			mergePatch:     `{"metadata":{"labels":{"merge":"yes"}}}`,
			jsonPatch:      `[{"op":"add","path":"/metadata/labels/json","value":"yes"}]`,
			strategicPatch: `{"metadata":{"labels":{"strategic":"yes"}}}`,
		} {
			do(harness.Request{Method: "PATCH", Path: path, ContentType: mediaType, Body: patch}, http.StatusOK)
		}
		if labels := reread(t, created).GetLabels(); labels["tier"] != "front" || labels["merge"] != "yes" || labels["json"] != "yes" || labels["strategic"] != "yes" {
			t.Errorf("labels after the patches: %v", labels)
		}
		// conventions Verbs-5, conventions Spec and Status-3: fields that PUT omits are cleared.
		put := do(harness.Request{Method: "PUT", Path: path, Body: k.Object(ns, "a")}, http.StatusOK)
		if put.GetLabels()["tier"] != "" || put.GetAnnotations()["note"] != "" {
			t.Errorf("after PUT got labels %v, annotations %v", put.GetLabels(), put.GetAnnotations())
		}
		// conventions Verbs-1, conventions Types-2 and -3, conventions Lists and Simple Kinds-1
		if objects := list(t, k, ns, nil); len(objects.Items) != 1 || objects.Items[0].GetUID() != created.GetUID() {
			t.Errorf("the list has %d items", len(objects.Items))
		}
		// conventions Verbs-4, conventions Response Status-2, conventions Metadata-2: another object of the name has another UID.
		if status := admin.Do(t, harness.Request{Method: "DELETE", Path: path}).Status(t); status.Status != metav1.StatusSuccess {
			t.Errorf("DELETE: %+v", status)
		}
		if other := do(harness.Request{Method: "POST", Path: collection, Body: k.Object(ns, "a")}, http.StatusCreated); other.GetUID() == created.GetUID() {
			t.Error("another object must have another UID")
		}
	})
}

// TestJSONByDefault checks that a client that accepts anything gets JSON (conventions Serialization-1).
func TestJSONByDefault(t *testing.T) {
	eachKind(t, func(t *testing.T, k harness.Kind) {
		for _, path := range []string{pathOf(stored(t, k)), k.Collection("default")} {
			response := admin.Do(t, harness.Request{Method: "GET", Path: path, Accept: "*/*"})
			if got := response.Header.Get("Content-Type"); response.Code != http.StatusOK || got != "application/json" {
				t.Errorf("GET %s: code %d, Content-Type %q", path, response.Code, got)
			}
		}
	})
}

// TestNames checks the rules of names and of generateName (conventions Idempotency-3 and -4).
func TestNames(t *testing.T) {
	eachUserKind(t, func(t *testing.T, k harness.Kind) {
		ns := namespace(t)
		obj := k.Object(ns, "")
		obj.SetGenerateName("Not_A_Name-")
		status := wantStatus(t, admin.Do(t, harness.Request{Method: "POST", Path: k.Collection(ns), Body: obj}), http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
		// conventions Response Status-10: causes are at their fields.
		if len(status.Details.Causes) == 0 || !strings.HasPrefix(status.Details.Causes[0].Field, "metadata.") {
			t.Errorf("causes are %+v", status.Details.Causes)
		}
		obj = k.Object(ns, "mine")
		obj.SetGenerateName("other-")
		if name := admin.Do(t, harness.Request{Method: "POST", Path: k.Collection(ns), Body: obj}).Object(t).GetName(); name != "mine" {
			t.Errorf("the name is %q", name)
		}
	})
}

// TestDeletionTimestamp checks that clients neither set deletionTimestamp nor change it (conventions Metadata-6 and -8), and
// that the object stays while it has a finalizer (conventions Metadata-7).
func TestDeletionTimestamp(t *testing.T) {
	eachUserKind(t, func(t *testing.T, k harness.Kind) {
		obj := stored(t, k)
		patch := func(metadata object) {
			t.Helper()
			response := admin.Do(t, harness.Request{Method: "PATCH", Path: pathOf(obj), ContentType: mergePatch, Body: object{"metadata": metadata}})
			if response.Code/100 != 2 && response.Code != http.StatusUnprocessableEntity {
				t.Fatalf("code %d: %s", response.Code, response.Body)
			}
		}
		const later = "2099-01-01T00:00:00Z"
		patch(object{"deletionTimestamp": later})
		patch(object{"finalizers": []any{"example.com/held"}})
		if at := reread(t, obj).GetDeletionTimestamp(); at != nil {
			t.Fatalf("a client set deletionTimestamp to %v", at)
		}
		remove(t, obj, nil)
		at := reread(t, obj).GetDeletionTimestamp()
		for _, value := range []any{nil, later} {
			patch(object{"deletionTimestamp": value})
			if got := reread(t, obj).GetDeletionTimestamp(); !got.Equal(at) {
				t.Errorf("deletionTimestamp %v became %v", at, got)
			}
		}
		patch(object{"finalizers": nil})
		wantGone(t, obj)
	})
}

// TestDefaultsAreStored checks that a GET shows the defaults that the server set (conventions Defaulting-1).
func TestDefaultsAreStored(t *testing.T) {
	for kind, fields := range map[string][]string{
		"Service":       {"spec", "template", "spec", "timeoutSeconds"},
		"Configuration": {"spec", "template", "spec", "containerConcurrency"},
		"Broker":        {"metadata", "annotations", "eventing.knative.dev/broker.class"},
		"Channel":       {"spec", "channelTemplate", "kind"},
	} {
		k := harness.KindOf(kind)
		obj := k.Object(namespace(t), "a")
		if field(obj, fields...) != nil {
			t.Fatalf("%s: %v is not a default", kind, fields)
		}
		admin.Do(t, harness.Request{Method: "POST", Path: k.Collection(obj.GetNamespace()), Body: obj}).Object(t)
		if field(reread(t, obj), fields...) == nil {
			t.Errorf("%s: GET shows no %v", kind, fields)
		}
	}
}

// TestForbiddenDetails checks that a refusal names the resource (conventions Response Status-6).
func TestForbiddenDetails(t *testing.T) {
	alice := admin.As(t, "alice")
	eachKind(t, func(t *testing.T, k harness.Kind) {
		status := wantStatus(t, alice.Do(t, harness.Request{Method: "GET", Path: k.Path("default", "a")}), http.StatusForbidden, metav1.StatusReasonForbidden)
		if status.Details == nil || status.Details.Name != "a" || status.Details.Group != k.Group || status.Details.Kind != k.Resource {
			t.Errorf("details are %+v", status.Details)
		}
	})
}
