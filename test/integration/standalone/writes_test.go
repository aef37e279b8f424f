package standalone

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// object is a part of an object, as JSON.
type object = map[string]any

// Media types of patches.
const (
	jsonPatch      = "application/json-patch+json"
	mergePatch     = "application/merge-patch+json"
	strategicPatch = "application/strategic-merge-patch+json"
	applyPatch     = "application/apply-patch+yaml"
)

// updateWay is one way to change an object. path is the path of the object or of its status, change has the new values.
type updateWay struct {
	name    string
	request func(live *unstructured.Unstructured, path string, change object) harness.Request
}

// updateWays are all ways to change an existing object.
func updateWays() []updateWay {
	return []updateWay{
		{"PUT", func(live *unstructured.Unstructured, path string, change object) harness.Request {
			return harness.Request{Method: "PUT", Path: path, Body: merged(live.Object, change)}
		}},
		{"JSON patch", func(live *unstructured.Unstructured, path string, change object) harness.Request {
			var operations []object
			for _, key := range slices.Sorted(maps.Keys(change)) {
				// This patch replaces lists, so it has to name all items that stay.
				value := change[key]
				if fields, ok := value.(object); ok {
					old, _ := live.Object[key].(object)
					value = merged(old, fields)
				}
				operations = append(operations, object{"op": "add", "path": "/" + key, "value": value})
			}
			return harness.Request{Method: "PATCH", Path: path, ContentType: jsonPatch, Body: operations}
		}},
		{"merge patch", func(_ *unstructured.Unstructured, path string, change object) harness.Request {
			return harness.Request{Method: "PATCH", Path: path, ContentType: mergePatch, Body: change}
		}},
		{"strategic merge patch", func(_ *unstructured.Unstructured, path string, change object) harness.Request {
			return harness.Request{Method: "PATCH", Path: path, ContentType: strategicPatch, Body: change}
		}},
		{"apply", func(live *unstructured.Unstructured, path string, change object) harness.Request {
			return applyRequest(path, merged(change, object{
				"apiVersion": live.GetAPIVersion(), "kind": live.GetKind(),
				"metadata": object{"name": live.GetName(), "namespace": live.GetNamespace()},
			}))
		}},
	}
}

// createWays are all ways to create an object with a name.
func createWays() []updateWay {
	return []updateWay{
		{"POST", func(obj *unstructured.Unstructured, _ string, _ object) harness.Request {
			return harness.Request{Method: "POST", Path: harness.KindOf(obj.GetKind()).Collection(obj.GetNamespace()), Body: obj}
		}},
		{"PUT of a new name", func(obj *unstructured.Unstructured, path string, _ object) harness.Request {
			return harness.Request{Method: "PUT", Path: path, Body: obj}
		}},
		{"apply of a new name", func(obj *unstructured.Unstructured, path string, _ object) harness.Request {
			return applyRequest(path, obj.Object)
		}},
	}
}

func applyRequest(path string, body any) harness.Request {
	return harness.Request{Method: "PATCH", Path: path + "?fieldManager=applier&force=true", ContentType: applyPatch, Body: body}
}

func (w updateWay) update(t testing.TB, live *unstructured.Unstructured, change object) *harness.Response {
	t.Helper()
	return admin.Do(t, w.request(live, pathOf(live), change))
}

func (w updateWay) updateStatus(t testing.TB, live *unstructured.Unstructured, change object) *harness.Response {
	t.Helper()
	return controllers.Do(t, w.request(live, pathOf(live)+"/status", change))
}

func (w updateWay) create(t testing.TB, obj *unstructured.Unstructured) *harness.Response {
	t.Helper()
	return admin.Do(t, w.request(obj, pathOf(obj), nil))
}

func pathOf(obj *unstructured.Unstructured) string {
	return harness.KindOf(obj.GetKind()).Path(obj.GetNamespace(), obj.GetName())
}

// merged returns base with change applied as a JSON merge patch.
func merged(base, change object) object {
	result := normal(base)
	for key, value := range normal(change) {
		if fields, ok := value.(object); ok {
			old, _ := result[key].(object)
			result[key] = merged(old, fields)
			continue
		}
		result[key] = value
	}
	return result
}

// normal returns a copy of an object as decoded: numbers are int64 or float64.
func normal(o object) object {
	result := object{}
	if o == nil {
		return result
	}
	if err := utiljson.Unmarshal([]byte(compact(o)), &result); err != nil {
		panic(err)
	}
	return result
}

// wantStatus checks that a response is a Status with this code and reason.
func wantStatus(t testing.TB, response *harness.Response, code int, reason metav1.StatusReason) *metav1.Status {
	t.Helper()
	status := response.Status(t)
	if response.Code != code || status.Code != int32(code) || status.Reason != reason || status.Status != metav1.StatusFailure {
		t.Fatalf("got code %d, Status %s %d %s, want %d %s; the message is %q",
			response.Code, status.Status, status.Code, status.Reason, code, reason, status.Message)
	}
	if status.Message == "" {
		t.Fatalf("a Status of code %d must have a message", code)
	}
	return status
}

// wantInvalid checks that a response is 422 with exactly these causes, each given as "<reason> <field>".
func wantInvalid(t testing.TB, response *harness.Response, causes ...string) *metav1.Status {
	t.Helper()
	status := wantStatus(t, response, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	var got []string
	for _, cause := range status.Details.Causes {
		got = append(got, fmt.Sprintf("%s %s", cause.Type, cause.Field))
	}
	slices.Sort(got)
	slices.Sort(causes)
	if diff := cmp.Diff(causes, got); diff != "" {
		t.Fatalf("causes (-want +got):\n%s\nmessage: %s", diff, status.Message)
	}
	return status
}

// wantMessage checks that the message of a Status contains all of parts.
func wantMessage(t testing.TB, status *metav1.Status, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(status.Message, part) {
			t.Errorf("the message must contain %q: %s", part, status.Message)
		}
	}
}

// wantSame checks that two states of an object are equal, including resource version and managed fields.
func wantSame(t testing.TB, before, after *unstructured.Unstructured) {
	t.Helper()
	if diff := cmp.Diff(before.Object, after.Object); diff != "" {
		t.Fatalf("the stored object changed (-before +after):\n%s", diff)
	}
}
