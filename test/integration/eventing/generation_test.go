package eventing

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// findings are the parts of a status for one generation of an object whose destination the test changes.
type findings struct {
	ready   string
	address string
}

// TestStatusOfOneGeneration checks in every version of an object that a status has the conditions and addresses of its
// observedGeneration (eventing Broker-2, Trigger-3, Channel-3 and Subscription-2; eventing Broker-3, Trigger-4, Channel-4 and
// Subscription-3).
func TestStatusOfOneGeneration(t *testing.T) {
	for _, tt := range []struct {
		kind string
		// destination is the path of a destination in the object, and address the path of its URL.
		destination, address []string
	}{
		{"Broker", []string{"spec", "delivery", "deadLetterSink"}, []string{"status", "deadLetterSinkUri"}},
		{"Trigger", []string{"spec", "subscriber"}, []string{"status", "subscriberUri"}},
		{"Channel", []string{"spec", "delivery", "deadLetterSink"}, []string{"status", "deadLetterSinkUri"}},
		{"Subscription", []string{"spec", "subscriber"}, []string{"status", "physicalSubscription", "subscriberUri"}},
	} {
		t.Run(tt.kind, func(t *testing.T) {
			t.Parallel()
			ns := namespace()
			shared.broker(t, ns, "default")
			shared.channel(t, ns, "orders")
			kind := harness.KindOf(tt.kind)
			objects := shared.Dynamic.Resource(kind.GVR()).Namespace(ns)
			object := kind.Object(ns, "changing")
			if tt.kind == "Subscription" {
				if err := unstructured.SetNestedField(object.Object, "orders", "spec", "channel", "name"); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := objects.Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			events, err := objects.Watch(t.Context(), metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", "changing").String()})
			if err != nil {
				t.Fatal(err)
			}
			defer events.Stop()
			for i := range 10 {
				url := fmt.Sprintf("http://127.0.0.1:1/%d", i)
				to, want := map[string]any{"uri": url, "ref": nil}, findings{"True", url}
				if i%2 == 0 {
					to = map[string]any{"uri": nil, "ref": map[string]any{"apiVersion": "eventing.knative.dev/v1", "kind": "Broker", "name": "missing"}}
					want = findings{"False", ""}
				}
				patch := any(to)
				for i := len(tt.destination) - 1; i >= 0; i-- {
					patch = map[string]any{tt.destination[i]: patch}
				}
				body, err := json.Marshal(patch)
				if err != nil {
					t.Fatal(err)
				}
				changed, err := objects.Patch(t.Context(), "changing", types.MergePatchType, body, metav1.PatchOptions{})
				if err != nil {
					t.Fatal(err)
				}
				got := observed(t, events, changed.GetGeneration(), tt.address)
				if diff := cmp.Diff(want, got, cmp.AllowUnexported(findings{})); diff != "" {
					t.Fatalf("the first status of generation %d (-want +got):\n%s", changed.GetGeneration(), diff)
				}
			}
		})
	}
}

// observed returns the first version of an object whose status is of a generation.
func observed(t *testing.T, events watch.Interface, generation int64, address []string) findings {
	t.Helper()
	ctx := bounded(t)
	for {
		select {
		case event := <-events.ResultChan():
			object, ok := event.Object.(*unstructured.Unstructured)
			if !ok {
				t.Fatalf("the watch returned %+v", event.Object)
			}
			var status struct {
				Status duckv1.Status `json:"status"`
			}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &status); err != nil {
				t.Fatal(err)
			}
			if status.Status.ObservedGeneration != generation {
				continue
			}
			url, _, err := unstructured.NestedString(object.Object, address...)
			if err != nil {
				t.Fatalf("%s: %v", strings.Join(address, "."), err)
			}
			ready, _, _ := strings.Cut(states(status.Status.Conditions)["Ready"], ":")
			return findings{ready, url}
		case <-ctx.Done():
			t.Fatalf("no status of generation %d", generation)
		}
	}
}
