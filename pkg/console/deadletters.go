package console

import (
	"context"
	"net/http"
	"net/url"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	"github.com/knative-apiserver/knative-apiserver/pkg/inspect"
)

// deadLettersPage has a part of the dead letters of a namespace, the oldest first.
type deadLettersPage struct {
	Namespace string
	// Type and ID select dead letters by the attributes of their events. Empty selects all.
	Type, ID string
	Letters  []eventingv1alpha1.DeadLetter
	// Consumers are the Triggers and Subscriptions of these dead letters, such as "Trigger billing".
	Consumers []string
	// Next is the query of the next part; empty for the last one.
	Next string
}

// deadLetters loads the page of all dead letters.
func (c *Console) deadLetters(ctx context.Context, r *http.Request) (any, error) {
	query := r.URL.Query()
	p := &deadLettersPage{Namespace: r.PathValue("namespace"), Type: query.Get("type"), ID: query.Get("id")}
	selected := map[string]string{eventingv1alpha1.DeadLetterEventTypeField: p.Type, eventingv1alpha1.DeadLetterEventIDField: p.ID}
	list, err := inspect.DeadLetters(ctx, c.knative, p.Namespace, metav1.ListOptions{FieldSelector: selectorOf(selected), Limit: 100, Continue: query.Get("continue")})
	if err != nil {
		return nil, err
	}
	p.Letters = list.Items
	for i := range p.Letters {
		p.Consumers = append(p.Consumers, inspect.Consumer(&p.Letters[i]))
	}
	slices.Sort(p.Consumers)
	p.Consumers = slices.Compact(p.Consumers)
	if list.Continue != "" {
		p.Next = "?" + url.Values{"type": {p.Type}, "id": {p.ID}, "continue": {list.Continue}}.Encode()
	}
	return p, nil
}

// selectorOf returns the field selector for values; empty ones select everything.
func selectorOf(values map[string]string) string {
	set := fields.Set{}
	for name, value := range values {
		if value != "" {
			set[name] = value
		}
	}
	return set.AsSelector().String()
}

// deadLetter loads the page of one dead letter.
func (c *Console) deadLetter(ctx context.Context, r *http.Request) (any, error) {
	return inspect.DeadLetter(ctx, c.knative, r.PathValue("namespace"), r.PathValue("name"))
}

// deleteDeadLetter deletes a dead letter, and shows the others.
func (c *Console) deleteDeadLetter(ctx context.Context, r *http.Request) (string, error) {
	namespace := r.PathValue("namespace")
	return "/namespaces/" + url.PathEscape(namespace) + "/deadletters", inspect.DeleteDeadLetter(ctx, c.knative, namespace, r.PathValue("name"))
}
