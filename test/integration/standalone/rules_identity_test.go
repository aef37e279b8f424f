package standalone

import (
	"encoding/json"
	"net/http"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// compact returns a value as JSON.
func compact(value any) string {
	content, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return string(content)
}

func forgedUsers(k harness.Kind) object {
	return object{k.Group + "/creator": "mallory", k.Group + "/lastModifier": "mallory"}
}

// wantUsers checks the creator and the last modifier of an object.
func wantUsers(t *testing.T, obj *unstructured.Unstructured, creator, modifier string) {
	t.Helper()
	group := obj.GroupVersionKind().Group
	annotations := reread(t, obj).GetAnnotations()
	if got := annotations[group+"/creator"]; got != creator {
		t.Errorf("the creator is %q, want %q", got, creator)
	}
	if got := annotations[group+"/lastModifier"]; got != modifier {
		t.Errorf("the last modifier is %q, want %q", got, modifier)
	}
}

// TestTheCreatorCannotBeForged checks that the annotations name the authenticated user, not a user that the request names.
func TestTheCreatorCannotBeForged(t *testing.T) {
	alice := admin.As(t, "alice", "system:masters")
	eachUserKind(t, func(t *testing.T, k harness.Kind) {
		for _, way := range createWays() {
			t.Run(way.name, func(t *testing.T) {
				obj := k.Object(namespace(t), "a")
				set(obj, forgedUsers(k), "metadata", "annotations")
				alice.Do(t, way.request(obj, pathOf(obj), nil)).Object(t)
				wantUsers(t, obj, "alice", "alice")
			})
		}
	})
}

func TestTheLastModifierCannotBeForged(t *testing.T) {
	alice, bob := admin.As(t, "alice", "system:masters"), admin.As(t, "bob", "system:masters")
	eachUserKind(t, func(t *testing.T, k harness.Kind) {
		for _, way := range updateWays() {
			t.Run(way.name, func(t *testing.T) {
				obj := k.Object(namespace(t), "a")
				alice.Do(t, harness.Request{Method: "POST", Path: k.Collection(obj.GetNamespace()), Body: obj}).Object(t)
				write := func(path string, change object) {
					t.Helper()
					bob.Do(t, way.request(reread(t, obj), path, change)).Object(t)
				}
				write(pathOf(obj), object{"metadata": object{"annotations": forgedUsers(k)}})
				wantUsers(t, obj, "alice", "alice")
				write(pathOf(obj), object{"metadata": object{"annotations": object{"a": "b"}}})
				wantUsers(t, obj, "alice", "alice")
				way.updateStatus(t, reread(t, obj), object{"metadata": object{"annotations": forgedUsers(k)}, "status": readyStatus()}).Object(t)
				wantUsers(t, obj, "alice", "alice")
				spec := specChange(k)
				if way.name == "apply" && k.Kind != "Service" && k.Kind != "Configuration" {
					spec = merged(k.Object("", "a").Object["spec"].(object), spec)
				}
				write(pathOf(obj), object{"metadata": object{"annotations": forgedUsers(k)}, "spec": spec})
				wantUsers(t, obj, "alice", "bob")
			})
		}
		t.Run("taken away", func(t *testing.T) {
			obj := stored(t, k)
			annotations := obj.GetAnnotations()
			delete(annotations, k.Group+"/creator")
			delete(annotations, k.Group+"/lastModifier")
			obj.SetAnnotations(annotations)
			bob.Do(t, harness.Request{Method: "PUT", Path: pathOf(obj), Body: obj}).Object(t)
			wantUsers(t, obj, "admin", "admin")
		})
	})
}

// TestDryRun checks that dryRun=All processes the whole request and stores nothing.
func TestDryRun(t *testing.T) {
	eachUserKind(t, func(t *testing.T, k harness.Kind) {
		for _, way := range createWays() {
			t.Run(way.name, func(t *testing.T) {
				obj := k.Object(namespace(t), "a")
				request := way.request(obj, pathOf(obj), nil)
				request.Path = withQuery(request.Path, "dryRun=All")
				answer := admin.Do(t, request).Object(t)
				if answer.GetUID() == "" || answer.GetGeneration() != 1 || answer.GetAnnotations()[k.Group+"/creator"] != "admin" {
					t.Errorf("the response differs from the object that would be stored: %v", answer.Object)
				}
				wantStatus(t, admin.Do(t, harness.Request{Method: "GET", Path: pathOf(obj)}), http.StatusNotFound, metav1.StatusReasonNotFound)
				set(obj, map[string]any{"A B": "c"}, "metadata", "labels")
				request = way.request(obj, pathOf(obj), nil)
				request.Path = withQuery(request.Path, "dryRun=All")
				wantInvalid(t, admin.Do(t, request), "FieldValueInvalid metadata.labels")
			})
		}
	})
	eachKind(t, func(t *testing.T, k harness.Kind) {
		before := stored(t, k)
		for _, way := range updateWays() {
			t.Run(way.name, func(t *testing.T) {
				for path, change := range map[string]object{
					pathOf(before):             {"metadata": object{"labels": object{"dry": "run"}}},
					pathOf(before) + "/status": {"status": readyStatus()},
				} {
					clients := admin
					if path != pathOf(before) {
						clients = controllers
					}
					request := way.request(before, path, change)
					request.Path = withQuery(request.Path, "dryRun=All")
					answer := clients.Do(t, request).Object(t)
					if path == pathOf(before) && answer.GetLabels()["dry"] != "run" {
						t.Errorf("the response differs from the object that would be stored: %v", answer.Object)
					}
					wantSame(t, before, reread(t, before))
				}
			})
		}
		for _, path := range []string{pathOf(before), k.Collection(before.GetNamespace())} {
			if response := admin.Do(t, harness.Request{Method: "DELETE", Path: path + "?dryRun=All"}); response.Code != http.StatusOK {
				t.Errorf("DELETE %s: code %d: %s", path, response.Code, response.Body)
			}
			wantSame(t, before, reread(t, before))
		}
		response := admin.Do(t, harness.Request{Method: "DELETE", Path: pathOf(before) + "?dryRun=Some"})
		wantStatus(t, response, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	})
}
