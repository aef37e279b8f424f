package standalone

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// readyStatus returns a status that every kind can have.
func readyStatus() object {
	return object{
		"observedGeneration": int64(7),
		"conditions": []any{object{
			"type": "Ready", "status": "False", "reason": "Deploying", "message": "not yet",
			"lastTransitionTime": "2026-01-02T03:04:05Z",
		}},
	}
}

// TestStatusIsIgnoredOnTheResource checks that only controllers write the status, by /status (serving 5.1-1, eventing Detailed
// Resources-4).
// It covers conventions Spec and Status-1.
func TestStatusIsIgnoredOnTheResource(t *testing.T) {
	// An object without a known creator has no managed fields, and gets some by the first apply.
	labelled := func(obj *unstructured.Unstructured) { obj.SetLabels(map[string]string{"a": "b"}) }
	eachKind(t, func(t *testing.T, k harness.Kind) {
		for _, way := range updateWays() {
			t.Run(way.name, func(t *testing.T) {
				before := stored(t, k, labelled)
				answer := way.update(t, before, object{"status": readyStatus()}).Object(t)
				wantSame(t, before, reread(t, before))
				wantSame(t, before, answer)
			})
		}
	})
}

func TestStatusIsKeptWhenTheResourceIsWritten(t *testing.T) {
	eachKind(t, func(t *testing.T, k harness.Kind) {
		for _, way := range updateWays() {
			t.Run(way.name, func(t *testing.T) {
				before := controllers.Do(t, harness.Request{
					Method: "PATCH", Path: pathOf(stored(t, k)) + "/status", ContentType: mergePatch,
					Body: object{"status": readyStatus()},
				})
				live := before.Object(t)
				want := live.Object["status"]
				without := live.DeepCopy()
				unstructured.RemoveNestedField(without.Object, "status")
				way.update(t, without, object{"metadata": object{"labels": object{"touched": "yes"}}}).Object(t)
				after := reread(t, live)
				if diff := cmp.Diff(want, after.Object["status"]); diff != "" {
					t.Errorf("status (-before +after):\n%s", diff)
				}
				if after.GetLabels()["touched"] != "yes" {
					t.Errorf("the label was not set: %v", after.GetLabels())
				}
			})
		}
	})
}

// TestStatusIsIgnoredOnCreation covers conventions Spec and Status-1.
func TestStatusIsIgnoredOnCreation(t *testing.T) {
	eachUserKind(t, func(t *testing.T, k harness.Kind) {
		for _, way := range createWays() {
			t.Run(way.name, func(t *testing.T) {
				obj := k.Object(namespace(t), "a")
				obj.Object["status"] = readyStatus()
				way.create(t, obj).Object(t)
				if status, _ := reread(t, obj).Object["status"].(object); len(status) > 0 {
					t.Errorf("a status was stored: %v", status)
				}
			})
		}
	})
}

// TestOnlyTheStatusIsWrittenThroughStatus covers conventions Spec and Status-2.
func TestOnlyTheStatusIsWrittenThroughStatus(t *testing.T) {
	eachKind(t, func(t *testing.T, k harness.Kind) {
		for _, way := range updateWays() {
			t.Run(way.name, func(t *testing.T) {
				before := stored(t, k)
				change := object{
					"metadata": object{
						"labels":      object{"forged": "yes"},
						"annotations": object{"forged": "yes"},
						"finalizers":  []any{"example.com/forged"},
						"ownerReferences": []any{object{
							"apiVersion": "v1", "kind": "ConfigMap", "name": "forged", "uid": "11111111-1111-1111-1111-111111111111",
						}},
					},
					"spec":   specChange(k),
					"status": readyStatus(),
				}
				if k.Kind == "Revision" {
					change["spec"] = object{"timeoutSeconds": int64(77)}
				}
				way.updateStatus(t, before, change).Object(t)
				after := reread(t, before)
				status := after.Object["status"].(object)
				if diff := cmp.Diff(readyStatus(), object{"observedGeneration": status["observedGeneration"], "conditions": status["conditions"]}); diff != "" {
					t.Errorf("status (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(before.Object["spec"], after.Object["spec"]); diff != "" {
					t.Errorf("spec (-before +after):\n%s", diff)
				}
				// A status write changes only these two.
				for _, o := range []*unstructured.Unstructured{before, after} {
					unstructured.RemoveNestedField(o.Object, "metadata", "managedFields")
					unstructured.RemoveNestedField(o.Object, "metadata", "resourceVersion")
				}
				if diff := cmp.Diff(before.Object["metadata"], after.Object["metadata"]); diff != "" {
					t.Errorf("metadata (-before +after):\n%s", diff)
				}
			})
		}
	})
}

// TestUserStatusIsRefused checks that users, including the administrator, may not write a status by any verb: for example, the
// image digests in the status of a Revision decide what its Pods run. The controllers of a foreign Broker class may write the
// status of its Brokers and of their Triggers.
func TestUserStatusIsRefused(t *testing.T) {
	eachKind(t, func(t *testing.T, k harness.Kind) {
		before := stored(t, k)
		for _, way := range updateWays() {
			t.Run(way.name, func(t *testing.T) {
				response := admin.Do(t, way.request(before, pathOf(before)+"/status", object{"status": readyStatus()}))
				status := wantStatus(t, response, http.StatusForbidden, metav1.StatusReasonForbidden)
				wantMessage(t, status, k.Resource, before.GetName(), "status is written by the controllers of this server only")
				wantSame(t, before, reread(t, before))
			})
		}
	})
}

func TestForeignStatus(t *testing.T) {
	ns := namespace(t)
	post := func(kind, name string, change object) string {
		k := harness.KindOf(kind)
		obj := admin.Do(t, harness.Request{Method: "POST", Path: k.Collection(ns), Body: merged(k.Object(ns, name).Object, change)}).Object(t)
		return pathOf(obj) + "/status"
	}
	class := func(name string) object {
		return object{"metadata": object{"annotations": object{"eventing.knative.dev/broker.class": name}}}
	}
	to := func(broker string) object { return object{"spec": object{"broker": broker}} }
	for path, code := range map[string]int{
		post("Broker", "kafka", class("Kafka")):                      http.StatusOK,
		post("Broker", "alias", class("MTChannelBasedBroker")):       http.StatusForbidden,
		post("Broker", "own", nil):                                   http.StatusForbidden,
		post("Trigger", "of-kafka", to("kafka")):                     http.StatusOK,
		post("Trigger", "of-own", to("own")):                         http.StatusForbidden,
		post("Trigger", "of-none", to("none")):                       http.StatusForbidden,
		post("Channel", "c", class("Kafka")):                         http.StatusForbidden,
		post("Service", "s", class("Kafka")):                         http.StatusForbidden,
		post("Trigger", "claims", merged(to("own"), class("Kafka"))): http.StatusForbidden,
	} {
		response := admin.Do(t, harness.Request{Method: "PATCH", Path: path, ContentType: mergePatch, Body: object{"status": readyStatus()}})
		if response.Code != code {
			t.Errorf("%s: code %d, want %d: %s", path, response.Code, code, response.Body)
		}
	}
	// The Broker of that name in another namespace has no effect.
	other := namespace(t)
	k := harness.KindOf("Trigger")
	obj := admin.Do(t, harness.Request{Method: "POST", Path: k.Collection(other), Body: merged(k.Object(other, "a").Object, to("kafka"))}).Object(t)
	response := admin.Do(t, harness.Request{Method: "PATCH", Path: pathOf(obj) + "/status", ContentType: mergePatch, Body: object{"status": readyStatus()}})
	wantStatus(t, response, http.StatusForbidden, metav1.StatusReasonForbidden)
}

// TestStatusIsNeverCreated checks that a status is only written to an existing object.
func TestStatusIsNeverCreated(t *testing.T) {
	eachKind(t, func(t *testing.T, k harness.Kind) {
		for _, way := range updateWays() {
			obj := k.Object(namespace(t), "absent")
			response := way.updateStatus(t, obj, object{"status": readyStatus()})
			wantStatus(t, response, http.StatusNotFound, metav1.StatusReasonNotFound)
		}
		response := admin.Do(t, harness.Request{Method: "POST", Path: k.StatusPath(namespace(t), "a"), Body: k.Object("", "a")})
		wantStatus(t, response, http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed)
	})
}

// TestConditionsAreValidated checks that a list of conditions has each type once, with a valid status (serving 6-2, eventing
// Error Signalling-1, -2).
// It covers conventions Conditions-1 and -4.
func TestConditionsAreValidated(t *testing.T) {
	eachKind(t, func(t *testing.T, k harness.Kind) {
		before := stored(t, k)
		response := controllers.Do(t, harness.Request{
			Method: "PATCH", Path: pathOf(before) + "/status", ContentType: mergePatch,
			Body: object{"status": object{"conditions": []any{
				object{"type": "Ready", "status": "Perhaps"},
				object{"type": "Ready", "status": "True"},
			}}},
		})
		wantInvalid(t, response,
			"FieldValueNotSupported status.conditions[0].status",
			"FieldValueDuplicate status.conditions[1].type")
		wantSame(t, before, reread(t, before))
	})
}

func TestUnsupportedMediaTypes(t *testing.T) {
	eachKind(t, func(t *testing.T, k harness.Kind) {
		obj := stored(t, k)
		for _, path := range []string{pathOf(obj), pathOf(obj) + "/status"} {
			for method, mediaTypes := range map[string][]string{
				"PATCH": {"application/json", "text/plain", "application/xml", "application/vnd.kubernetes.protobuf"},
				"PUT":   {"text/plain", "application/xml", mergePatch},
			} {
				for _, mediaType := range mediaTypes {
					response := admin.Do(t, harness.Request{Method: method, Path: path, ContentType: mediaType, Body: obj})
					if response.Code != http.StatusUnsupportedMediaType {
						t.Errorf("%s %s with %s: code %d, want 415", method, path, mediaType, response.Code)
						continue
					}
					wantStatus(t, response, http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType)
				}
			}
		}
		response := admin.Do(t, harness.Request{Method: "POST", Path: k.Collection(obj.GetNamespace()), ContentType: "text/plain", Body: obj})
		wantStatus(t, response, http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType)
		wantSame(t, obj, reread(t, obj))
	})
}
