package standalone

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// specChange returns a valid change of the meaning of a kind's spec. Revisions have none.
func specChange(k harness.Kind) object {
	switch k.Kind {
	case "Revision":
		return nil
	case "Service", "Configuration":
		return object{"template": object{"spec": object{"timeoutSeconds": int64(77)}}}
	case "Route":
		return object{"traffic": []any{object{"configurationName": "other", "latestRevision": true, "percent": int64(100)}}}
	default:
		return object{"delivery": object{"retry": int64(7)}}
	}
}

// TestGeneration checks that the generation changes with the meaning of the spec, and only then (serving 5.1-2).
// It covers conventions Metadata-4.
func TestGeneration(t *testing.T) {
	eachKind(t, func(t *testing.T, k harness.Kind) {
		for _, way := range updateWays() {
			t.Run(way.name, func(t *testing.T) {
				obj := stored(t, k)
				if obj.GetGeneration() != 1 {
					t.Fatalf("generation at creation is %d, want 1", obj.GetGeneration())
				}
				steps := []struct {
					what   string
					path   string
					change object
					want   int64
				}{
					{"labels", pathOf(obj), object{"metadata": object{"labels": object{"a": "b"}}}, 1},
					{"annotations", pathOf(obj), object{"metadata": object{"annotations": object{"a": "b"}}}, 1},
					{"finalizers", pathOf(obj), object{"metadata": object{"finalizers": []any{"example.com/a"}}}, 1},
					{"a generation of the user's", pathOf(obj), object{"metadata": object{"generation": int64(42)}}, 1},
					{"status", pathOf(obj) + "/status", object{"status": readyStatus()}, 1},
					{"spec", pathOf(obj), object{"spec": specChange(k)}, 2},
					{"the same spec", pathOf(obj), object{"spec": specChange(k)}, 2},
				}
				if k.Kind == "Revision" {
					steps = steps[:len(steps)-2]
				}
				for _, step := range steps {
					if way.name == "apply" && step.what == "spec" {
						// An applier owns the fields that it names, and releases the others.
						step.change = merged(k.Object("", "a").Object, step.change)
					}
					clients := admin
					if step.what == "status" {
						clients = controllers
					}
					clients.Do(t, way.request(reread(t, obj), step.path, step.change)).Object(t)
					if got := reread(t, obj).GetGeneration(); got != step.want {
						t.Errorf("generation after a write of %s is %d, want %d", step.what, got, step.want)
					}
				}
				// Finalizers would keep a Revision until the next run.
				admin.Do(t, harness.Request{Method: "PATCH", Path: pathOf(obj), ContentType: mergePatch, Body: object{"metadata": object{"finalizers": nil}}}).Object(t)
			})
		}
	})
}

// TestGenerationOfANewObjectIsOne covers conventions Metadata-4.
func TestGenerationOfANewObjectIsOne(t *testing.T) {
	eachUserKind(t, func(t *testing.T, k harness.Kind) {
		for _, way := range createWays() {
			obj := k.Object(namespace(t), "a")
			obj.SetGeneration(42)
			if got := way.create(t, obj).Object(t).GetGeneration(); got != 1 {
				t.Errorf("generation after %s is %d, want 1", way.name, got)
			}
		}
	})
}

// TestWritesWithoutChangeKeepTheResourceVersion checks that a write without a change stores nothing, and so does not trigger
// watches and controllers.
func TestWritesWithoutChangeKeepTheResourceVersion(t *testing.T) {
	eachKind(t, func(t *testing.T, k harness.Kind) {
		for _, way := range updateWays() {
			if way.name == "apply" {
				continue // see TestApplyingTwiceKeepsTheResourceVersion
			}
			t.Run(way.name, func(t *testing.T) {
				before := stored(t, k)
				spec, _ := before.Object["spec"].(object)
				way.update(t, before, object{"spec": spec}).Object(t)
				wantSame(t, before, reread(t, before))
				way.updateStatus(t, before, object{"status": object{}}).Object(t)
				wantSame(t, before, reread(t, before))
			})
		}
	})
}

func TestApplyingTwiceKeepsTheResourceVersion(t *testing.T) {
	eachUserKind(t, func(t *testing.T, k harness.Kind) {
		obj := k.Object(namespace(t), "a")
		request := applyRequest(pathOf(obj), obj)
		before := admin.Do(t, request).Object(t)
		admin.Do(t, request).Object(t)
		wantSame(t, before, reread(t, obj))
	})
}

// TestTheOriginalManifestChangesNothing checks that the original manifest, without the server's additions, is the same object.
func TestTheOriginalManifestChangesNothing(t *testing.T) {
	eachUserKind(t, func(t *testing.T, k harness.Kind) {
		before := stored(t, k)
		manifest := k.Object(before.GetNamespace(), before.GetName())
		admin.Do(t, harness.Request{Method: "PUT", Path: pathOf(before), Body: manifest}).Object(t)
		wantSame(t, before, reread(t, before))
	})
}

// oneContainer sets fields beside the image in the only container of a manifest.
func oneContainer(fields object) func(*unstructured.Unstructured) {
	return func(obj *unstructured.Unstructured) {
		set(obj, []any{merged(object{"image": "registry.example.com/hello"}, fields)}, "spec", "template", "spec", "containers")
	}
}

// TestOtherFormsOfTheSameMeaningChangeNothing checks that an equivalent form is not a change.
func TestOtherFormsOfTheSameMeaningChangeNothing(t *testing.T) {
	resources := func(cpu, memory string) func(*unstructured.Unstructured) {
		return oneContainer(object{"resources": object{"limits": object{"cpu": cpu, "memory": memory}}})
	}
	for _, tc := range []struct {
		name          string
		first, second func(*unstructured.Unstructured)
	}{
		{"quantities", resources("1000m", "1Gi"), resources("1", "1024Mi")},
		{"quantities in another unit", resources("1", "1Gi"), resources("1.0", "1073741824")},
		{"empty and absent lists", oneContainer(object{"args": []any{}}), oneContainer(nil)},
		{"null and absent", oneContainer(object{"env": nil}), oneContainer(nil)},
		{"default and absent", oneContainer(object{"name": "user-container"}), oneContainer(nil)},
		{"empty and absent maps", oneContainer(nil), func(o *unstructured.Unstructured) {
			oneContainer(nil)(o)
			set(o, object{}, "spec", "template", "metadata", "annotations")
		}},
	} {
		for _, kind := range []string{"Service", "Configuration"} {
			t.Run(tc.name+"/"+kind, func(t *testing.T) {
				k := harness.KindOf(kind)
				before := stored(t, k, tc.first)
				second := k.Object(before.GetNamespace(), before.GetName())
				tc.second(second)
				admin.Do(t, harness.Request{Method: "PUT", Path: pathOf(before), Body: second}).Object(t)
				after := reread(t, before)
				wantSame(t, before, after)
				if diff := cmp.Diff(int64(1), after.GetGeneration()); diff != "" {
					t.Errorf("generation (-want +got): %s", diff)
				}
			})
		}
	}
}
