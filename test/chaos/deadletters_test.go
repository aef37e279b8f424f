package chaos

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/knative-apiserver/knative-apiserver/test/chaos/history"
)

// storedName is the name of the Triggers whose dead letters are in the dead letter store.
const storedName = "stored"

// collectDeadLetters records the dead letters in the store, as if a sink had got them. seen are the names of the recorded ones.
func (s *site) collectDeadLetters(ctx context.Context, seen sets.Set[string]) error {
	resource := s.clients().Dynamic.Resource(schema.GroupVersionResource{Group: "eventing.knative.dev", Version: "v1alpha1", Resource: "deadletters"})
	for _, ns := range s.namespaces {
		options := metav1.ListOptions{LabelSelector: "eventing.knative.dev/trigger=" + storedName}
		for {
			list, err := resource.Namespace(ns).List(ctx, options)
			if err != nil {
				return err
			}
			for i := range list.Items {
				if name := ns + "/" + list.Items[i].GetName(); !seen.Has(name) {
					seen.Insert(name)
					id, _, _ := unstructured.NestedString(list.Items[i].Object, "event", "id")
					now := s.recorder.now()
					s.recorder.record(func(h *history.History) {
						h.Attempts = append(h.Attempts, history.Attempt{Subscription: ns + "/" + storedName, Dead: true, ID: id, OK: true, Start: now, End: now})
					})
				}
			}
			if options.Continue = list.GetContinue(); options.Continue == "" {
				break
			}
		}
	}
	return nil
}
