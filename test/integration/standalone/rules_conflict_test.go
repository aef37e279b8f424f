package standalone

import (
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

func label(value string) object {
	return object{"metadata": object{"labels": object{"by": value}}}
}

// TestAStaleResourceVersionIsAConflict covers conventions Concurrency-2, conventions HTTP Status Codes-8, conventions
// Response Status-9.
func TestAStaleResourceVersionIsAConflict(t *testing.T) {
	eachKind(t, func(t *testing.T, k harness.Kind) {
		for _, way := range updateWays() {
			t.Run(way.name, func(t *testing.T) {
				stale := stored(t, k)
				admin.Do(t, harness.Request{Method: "PATCH", Path: pathOf(stale), ContentType: mergePatch, Body: label("first")}).Object(t)
				change := label("second")
				change["metadata"].(object)["resourceVersion"] = stale.GetResourceVersion()
				request := way.request(stale, pathOf(stale), change)
				if way.name == "apply" {
					// The metadata of the request is applied last.
					body := request.Body.(object)
					body["metadata"].(object)["resourceVersion"] = stale.GetResourceVersion()
				}
				status := wantStatus(t, admin.Do(t, request), http.StatusConflict, metav1.StatusReasonConflict)
				wantMessage(t, status, "the object has been modified")
				if got := reread(t, stale).GetLabels()["by"]; got != "first" {
					t.Errorf("the label is %q, want the first writer's", got)
				}
				status = wantStatus(t, controllers.Do(t, harness.Request{
					Method: "PATCH", Path: pathOf(stale) + "/status", ContentType: mergePatch,
					Body: object{"metadata": object{"resourceVersion": stale.GetResourceVersion()}, "status": readyStatus()},
				}), http.StatusConflict, metav1.StatusReasonConflict)
				wantMessage(t, status, "the object has been modified")
			})
		}
	})
}

func TestPutWithoutResourceVersionIsUnconditional(t *testing.T) {
	eachKind(t, func(t *testing.T, k harness.Kind) {
		obj := stored(t, k)
		admin.Do(t, harness.Request{Method: "PATCH", Path: pathOf(obj), ContentType: mergePatch, Body: label("first")}).Object(t)
		obj.SetResourceVersion("")
		obj.SetLabels(map[string]string{"by": "second"})
		admin.Do(t, harness.Request{Method: "PUT", Path: pathOf(obj), Body: obj}).Object(t)
		if got := reread(t, obj).GetLabels()["by"]; got != "second" {
			t.Errorf("the label is %q, want the second writer's", got)
		}
	})
}

// TestAConflictingName covers conventions Idempotency-1, conventions Response Status-8.
func TestAConflictingName(t *testing.T) {
	eachUserKind(t, func(t *testing.T, k harness.Kind) {
		obj := stored(t, k)
		response := admin.Do(t, harness.Request{Method: "POST", Path: k.Collection(obj.GetNamespace()), Body: k.Object(obj.GetNamespace(), obj.GetName())})
		status := wantStatus(t, response, http.StatusConflict, metav1.StatusReasonAlreadyExists)
		wantMessage(t, status, k.Resource+"."+k.Group, `"a" already exists`)
		if status.Details.Name != "a" || status.Details.Group != k.Group || status.Details.Kind != k.Resource {
			t.Errorf("details are %+v", status.Details)
		}
		wantSame(t, obj, reread(t, obj))
	})
}

// TestPutOfANewNameCreates covers conventions Verbs-5.
func TestPutOfANewNameCreates(t *testing.T) {
	eachUserKind(t, func(t *testing.T, k harness.Kind) {
		obj := k.Object(namespace(t), "a")
		response := admin.Do(t, harness.Request{Method: "PUT", Path: pathOf(obj), Body: obj})
		if response.Code != http.StatusCreated {
			t.Fatalf("code %d, want 201: %s", response.Code, response.Body)
		}
		created := response.Object(t)
		if created.GetUID() == "" || created.GetResourceVersion() == "" || field(created, "metadata", "creationTimestamp") == nil {
			t.Errorf("the object is incomplete: %v", created.Object["metadata"])
		}
		if response := admin.Do(t, harness.Request{Method: "PUT", Path: pathOf(obj), Body: obj}); response.Code != http.StatusOK {
			t.Errorf("code of the second PUT is %d, want 200", response.Code)
		}
		obj.SetName("b")
		obj.SetResourceVersion("1")
		response = admin.Do(t, harness.Request{Method: "PUT", Path: pathOf(obj), Body: obj})
		wantStatus(t, response, http.StatusConflict, metav1.StatusReasonConflict)
		obj.SetResourceVersion("")
		obj.SetUID("11111111-1111-1111-1111-111111111111")
		response = admin.Do(t, harness.Request{Method: "PUT", Path: pathOf(obj), Body: obj})
		wantStatus(t, response, http.StatusConflict, metav1.StatusReasonConflict)
	})
}

// TestGenerateName covers conventions Idempotency-2.
func TestGenerateName(t *testing.T) {
	eachUserKind(t, func(t *testing.T, k harness.Kind) {
		obj := k.Object(namespace(t), "")
		obj.SetGenerateName("shop-")
		names := map[string]bool{}
		for range 3 {
			created := admin.Do(t, harness.Request{Method: "POST", Path: k.Collection(obj.GetNamespace()), Body: obj}).Object(t)
			if !strings.HasPrefix(created.GetName(), "shop-") || len(created.GetName()) != len("shop-")+5 {
				t.Errorf("the name is %q", created.GetName())
			}
			names[created.GetName()] = true
		}
		if len(names) != 3 {
			t.Errorf("the names are %v", names)
		}
	})
}

func TestNamesInPathAndBodyMustAgree(t *testing.T) {
	eachUserKind(t, func(t *testing.T, k harness.Kind) {
		obj := stored(t, k)
		other := k.Object(obj.GetNamespace(), "b")
		wantStatus(t, admin.Do(t, harness.Request{Method: "PUT", Path: pathOf(obj), Body: other}), http.StatusBadRequest, metav1.StatusReasonBadRequest)
		other = k.Object("elsewhere", "b")
		wantStatus(t, admin.Do(t, harness.Request{Method: "POST", Path: k.Collection(obj.GetNamespace()), Body: other}), http.StatusBadRequest, metav1.StatusReasonBadRequest)
		wantSame(t, obj, reread(t, obj))
	})
}
