package standalone

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// applyAs applies the fields of a manager to an object.
func applyAs(t testing.TB, manager string, force bool, obj *unstructured.Unstructured, wants object) *harness.Response {
	t.Helper()
	query := "?fieldManager=" + manager
	if force {
		query += "&force=true"
	}
	return admin.Do(t, harness.Request{Method: "PATCH", Path: pathOf(obj) + query, ContentType: applyPatch, Body: merged(object{
		"apiVersion": obj.GetAPIVersion(), "kind": obj.GetKind(), "metadata": object{"name": obj.GetName()},
	}, wants)})
}

// wantConflict checks that an apply is rejected because of these fields.
func wantConflict(t testing.TB, response *harness.Response, fields ...string) {
	t.Helper()
	status := wantStatus(t, response, http.StatusConflict, metav1.StatusReasonConflict)
	var got []string
	for _, cause := range status.Details.Causes {
		if cause.Type != metav1.CauseTypeFieldManagerConflict {
			t.Errorf("the cause is %+v", cause)
		}
		got = append(got, cause.Field)
	}
	slices.Sort(got)
	if diff := cmp.Diff(fields, got); diff != "" {
		t.Errorf("conflicts (-want +got):\n%s", diff)
	}
}

// TestApplyOfVariablesByTwoManagers checks that two managers share a container: each owns its variables, and gets a conflict
// for the other's.
func TestApplyOfVariablesByTwoManagers(t *testing.T) {
	for _, kind := range []string{"Service", "Configuration"} {
		t.Run(kind, func(t *testing.T) {
			obj := harness.KindOf(kind).Object(namespace(t), "a")
			applyAs(t, "one", false, obj, withContainers(object{"name": "app", "image": "registry.example.com/app", "env": env("A=1", "B=2")})).Object(t)
			applyAs(t, "two", false, obj, withContainers(object{"name": "app", "env": env("C=3")})).Object(t)
			if diff := cmp.Diff([]string{"A=1", "B=2", "C=3"}, envOf(containersOf(t, reread(t, obj))["app"])); diff != "" {
				t.Errorf("env (-want +got):\n%s", diff)
			}
			wants := withContainers(object{"name": "app", "env": env("A=4", "C=3")})
			const variable = `.spec.template.spec.containers[name="app"].env[name="A"].value`
			wantConflict(t, applyAs(t, "two", false, obj, wants), variable)
			applyAs(t, "two", true, obj, wants).Object(t)
			wantConflict(t, applyAs(t, "one", false, obj, withContainers(object{
				"name": "app", "image": "registry.example.com/app", "env": env("A=1", "B=2"),
			})), variable)
			// Fields that a manager no longer names are removed, unless another manager owns them too.
			applyAs(t, "one", false, obj, withContainers(object{"name": "app", "image": "registry.example.com/app"})).Object(t)
			if diff := cmp.Diff([]string{"A=4", "C=3"}, envOf(containersOf(t, reread(t, obj))["app"])); diff != "" {
				t.Errorf("env (-want +got):\n%s", diff)
			}
		})
	}
}

// TestTrafficIsAtomic checks that one manager owns all of the traffic.
func TestTrafficIsAtomic(t *testing.T) {
	for _, kind := range []string{"Service", "Route"} {
		t.Run(kind, func(t *testing.T) {
			obj := harness.KindOf(kind).Object(namespace(t), "a")
			base := object{}
			if kind == "Service" {
				base = withContainers(object{"image": "registry.example.com/app"})
			}
			traffic := func(targets ...any) object { return merged(base, object{"spec": object{"traffic": targets}}) }
			applyAs(t, "one", false, obj, traffic(object{"revisionName": "a-00001", "percent": 100})).Object(t)
			split := object{"spec": object{"traffic": []any{object{"revisionName": "a-00001", "percent": 50}, object{"revisionName": "a-00002", "percent": 50}}}}
			wantConflict(t, applyAs(t, "two", false, obj, split), ".spec.traffic")
			applyAs(t, "two", true, obj, split).Object(t)
			if got := len(field(reread(t, obj), "spec", "traffic").([]any)); got != 2 {
				t.Errorf("got %d targets, want the second manager's 2", got)
			}
			wantConflict(t, applyAs(t, "one", false, obj, traffic(object{"revisionName": "a-00001", "percent": 100})), ".spec.traffic")
		})
	}
}

// TestApplyOfUnnamedContainers checks that container names have a default, so that manifests without names can be applied
// repeatedly.
func TestApplyOfUnnamedContainers(t *testing.T) {
	for _, kind := range []string{"Service", "Configuration"} {
		t.Run(kind, func(t *testing.T) {
			obj := harness.KindOf(kind).Object(namespace(t), "a")
			wants := withContainers(object{"image": "registry.example.com/app", "ports": []any{object{"name": "h2c"}}, "env": env("A=1")})
			first := applyAs(t, "one", false, obj, wants).Object(t)
			if containersOf(t, first)["user-container"] == nil {
				t.Fatalf("the containers are %v", containersOf(t, first))
			}
			applyAs(t, "one", false, obj, wants).Object(t)
			wantSame(t, first, reread(t, obj))
			changed := applyAs(t, "one", false, obj, withContainers(object{"image": "registry.example.com/other", "ports": []any{object{"name": "h2c"}}})).Object(t)
			app := containersOf(t, changed)["user-container"]
			if len(containersOf(t, changed)) != 1 || app["image"] != "registry.example.com/other" || app["env"] != nil {
				t.Errorf("the containers are %v", containersOf(t, changed))
			}
		})
	}
}

// TestApplyOwnsOnlyItsPart checks that appliers of the resource never own the status, nor appliers of the status the spec.
func TestApplyOwnsOnlyItsPart(t *testing.T) {
	eachUserKind(t, func(t *testing.T, k harness.Kind) {
		obj := k.Object(namespace(t), "a")
		both := merged(obj.Object, object{"status": readyStatus(), "metadata": object{"labels": object{"a": "b"}}})
		applyAs(t, "one", false, obj, both).Object(t)
		controllers.Do(t, harness.Request{Method: "PATCH", Path: pathOf(obj) + "/status?fieldManager=two", ContentType: applyPatch, Body: both}).Object(t)
		for _, entry := range reread(t, obj).GetManagedFields() {
			fields := entry.FieldsV1.GetRawString()
			switch entry.Manager {
			case "one":
				if entry.Subresource != "" || slices.Contains(topFields(t, fields), "f:status") {
					t.Errorf("the first manager owns %s", fields)
				}
			case "two":
				if entry.Subresource != "status" || !slices.Equal(topFields(t, fields), []string{"f:status"}) {
					t.Errorf("the second manager owns %s", fields)
				}
			default:
				t.Errorf("unexpected manager %s of %s", entry.Manager, fields)
			}
		}
		// The status is shared too, condition by condition.
		third := object{"apiVersion": obj.GetAPIVersion(), "kind": obj.GetKind(), "metadata": object{"name": "a"}, "status": object{
			"conditions": []any{object{"type": "Ready", "status": "True"}, object{"type": "Other", "status": "True"}},
		}}
		wantConflict(t, controllers.Do(t, harness.Request{Method: "PATCH", Path: pathOf(obj) + "/status?fieldManager=three", ContentType: applyPatch, Body: third}),
			`.status.conditions[type="Ready"].status`)
	})
}

func topFields(t testing.TB, fields string) []string {
	t.Helper()
	var top object
	if err := json.Unmarshal([]byte(fields), &top); err != nil {
		t.Fatal(err)
	}
	return slices.Sorted(maps.Keys(top))
}
