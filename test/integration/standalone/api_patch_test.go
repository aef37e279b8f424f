package standalone

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// containersOf returns the containers of a Service's template by name.
func containersOf(t testing.TB, obj *unstructured.Unstructured) map[string]object {
	t.Helper()
	containers, found, err := unstructured.NestedSlice(obj.Object, "spec", "template", "spec", "containers")
	if !found || err != nil {
		t.Fatalf("got no containers: %v", err)
	}
	byName := map[string]object{}
	for _, c := range containers {
		byName[c.(object)["name"].(string)] = c.(object)
	}
	return byName
}

// envOf returns the environment of a container, in order, as name=value.
func envOf(container object) []string {
	var env []string
	variables, _ := container["env"].([]any)
	for _, v := range variables {
		value, _ := v.(object)["value"].(string)
		env = append(env, v.(object)["name"].(string)+"="+value)
	}
	return env
}

func withContainers(containers ...any) object {
	return object{"spec": object{"template": object{"spec": object{"containers": containers}}}}
}

func env(pairs ...string) []any {
	variables := []any{}
	for _, pair := range pairs {
		name, value, _ := strings.Cut(pair, "=")
		variables = append(variables, object{"name": name, "value": value})
	}
	return variables
}

// TestStrategicMergeOfContainers checks that a strategic merge patch merges containers and variables by name.
// It covers conventions PATCH-3.
func TestStrategicMergeOfContainers(t *testing.T) {
	for _, kind := range []string{"Service", "Configuration"} {
		t.Run(kind, func(t *testing.T) {
			obj := stored(t, harness.KindOf(kind), func(obj *unstructured.Unstructured) {
				set(obj, []any{
					object{"name": "app", "image": "registry.example.com/app", "env": env("A=1", "B=2"), "ports": []any{object{"containerPort": int64(8080)}}},
					object{"name": "side", "image": "registry.example.com/side"},
				}, "spec", "template", "spec", "containers")
			})
			patch := func(body object) map[string]object {
				t.Helper()
				admin.Do(t, harness.Request{Method: "PATCH", Path: pathOf(obj), ContentType: strategicPatch, Body: body}).Object(t)
				return containersOf(t, reread(t, obj))
			}
			containers := patch(withContainers(object{"name": "app", "env": env("B=3", "C=4")}))
			got := envOf(containers["app"])
			slices.Sort(got)
			if diff := cmp.Diff([]string{"A=1", "B=3", "C=4"}, got); diff != "" || len(containers) != 2 {
				t.Errorf("%d containers, env (-want +got):\n%s", len(containers), diff)
			}
			containers = patch(withContainers(object{"name": "side", "$patch": "delete"}))
			if len(containers) != 1 || containers["app"] == nil {
				t.Errorf("the containers are %v", containers)
			}
			containers = patch(withContainers(object{"name": "app", "env": []any{object{"name": "A", "$patch": "delete"}}}))
			if got := envOf(containers["app"]); len(got) != 2 || slices.Contains(got, "A=1") {
				t.Errorf("env is %v", got)
			}
		})
	}
}

// TestStrategicMergeOfConditions checks that several controllers can write conditions of one object, each its own.
func TestStrategicMergeOfConditions(t *testing.T) {
	eachKind(t, func(t *testing.T, k harness.Kind) {
		obj := stored(t, k)
		for _, condition := range []object{
			{"type": "Ready", "status": "Unknown"},
			{"type": "Other", "status": "True"},
			{"type": "Ready", "status": "False", "reason": "Broken"},
		} {
			controllers.Do(t, harness.Request{
				Method: "PATCH", Path: pathOf(obj) + "/status", ContentType: strategicPatch,
				Body: object{"status": object{"conditions": []any{condition}}},
			}).Object(t)
		}
		got := map[string]any{}
		for _, c := range field(reread(t, obj), "status", "conditions").([]any) {
			got[c.(object)["type"].(string)] = c.(object)["status"]
		}
		if diff := cmp.Diff(map[string]any{"Ready": "False", "Other": "True"}, got); diff != "" {
			t.Errorf("conditions (-want +got):\n%s", diff)
		}
	})
}

// TestBadPatches checks that a patch that cannot be applied is a client error.
func TestBadPatches(t *testing.T) {
	eachKind(t, func(t *testing.T, k harness.Kind) {
		obj := stored(t, k)
		for name, request := range map[string]harness.Request{
			"merge patch that is a list":    {ContentType: mergePatch, Body: "[]"},
			"JSON patch that is an object":  {ContentType: jsonPatch, Body: "{}"},
			"JSON patch of an absent field": {ContentType: jsonPatch, Body: `[{"op":"remove","path":"/spec/absent"}]`},
			"JSON patch whose test fails":   {ContentType: jsonPatch, Body: `[{"op":"test","path":"/metadata/name","value":"other"}]`},
			"unknown directive":             {ContentType: strategicPatch, Body: `{"spec":{"$patch":"explode"}}`},
			"type change":                   {ContentType: mergePatch, Body: `{"spec":"text"}`},
			"name change":                   {ContentType: mergePatch, Body: `{"metadata":{"name":"other"}}`},
			"kind change":                   {ContentType: mergePatch, Body: `{"kind":"Other"}`},
			"apply of another kind":         {ContentType: applyPatch, Body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}`},
			"apply without a manager":       {ContentType: applyPatch, Body: compact(object{"apiVersion": obj.GetAPIVersion(), "kind": obj.GetKind()})},
			"apply with managed fields": {ContentType: applyPatch, Body: compact(object{
				"apiVersion": obj.GetAPIVersion(), "kind": obj.GetKind(), "metadata": object{"managedFields": []any{object{}}},
			})},
		} {
			request.Method, request.Path = "PATCH", pathOf(obj)
			if name == "apply of another kind" || name == "apply with managed fields" {
				request.Path += "?fieldManager=a"
			}
			response := admin.Do(t, request)
			if status := response.Status(t); response.Code/100 != 4 || status.Reason == "" || status.Message == "" {
				t.Errorf("%s: code %d, reason %q: %s", name, response.Code, status.Reason, status.Message)
			}
		}
		wantSame(t, obj, reread(t, obj))
	})
}

// TestStrategicMergeOfUnnamedContainers checks that list items must have their merge keys.
func TestStrategicMergeOfUnnamedContainers(t *testing.T) {
	obj := stored(t, harness.KindOf("Service"))
	response := admin.Do(t, harness.Request{
		Method: "PATCH", Path: pathOf(obj), ContentType: strategicPatch, Body: withContainers(object{"image": "registry.example.com/other"}),
	})
	wantMessage(t, wantStatus(t, response, http.StatusBadRequest, metav1.StatusReasonBadRequest), "merge key: name")
	wantSame(t, obj, reread(t, obj))
}
