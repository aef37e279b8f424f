package chaos

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/knative-apiserver/knative-apiserver/test/chaos/history"
)

// storedName is the name of the Triggers whose dead letters are in the dead letter store.
const storedName = "stored"

// collectEvery is the time between collections of dead letters: less than the time for which the full store of a long run keeps one.
const collectEvery = 10 * time.Second

// collectDeadLetters records the dead letters in the store, as if a sink had got them.
func (l *load) collectDeadLetters(ctx context.Context) error {
	resource := l.clients().Dynamic.Resource(schema.GroupVersionResource{Group: "eventing.knative.dev", Version: "v1alpha1", Resource: "deadletters"})
	for _, ns := range l.namespaces {
		options := metav1.ListOptions{LabelSelector: "eventing.knative.dev/trigger=" + storedName}
		for {
			list, err := resource.Namespace(ns).List(ctx, options)
			if err != nil {
				return err
			}
			for i := range list.Items {
				if name := ns + "/" + list.Items[i].GetName(); !l.stored.Has(name) {
					l.stored.Insert(name)
					id, _, _ := unstructured.NestedString(list.Items[i].Object, "event", "id")
					now := l.recorder.now()
					l.recorder.record(func(h *history.History) {
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
