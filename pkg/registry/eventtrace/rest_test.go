package eventtrace

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// parents has the Broker orders.
type parents struct{}

// Get implements rest.Getter.
func (parents) Get(_ context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	if name != "orders" {
		return nil, apierrors.NewNotFound(eventingv1.Resource("brokers"), name)
	}
	return &eventingv1.Broker{}, nil
}

// traces asks for objects of other namespaces, and records the request.
type traces struct {
	stream eventing.Key
	shown  []eventing.Key
}

// Trace implements Traces.
func (s *traces) Trace(_ context.Context, stream eventing.Key, _ *duckv1.EventTraceOptions, readable func(eventing.Key) bool) (*duckv1.EventTrace, error) {
	s.stream = stream
	for _, kind := range []eventing.Kind{eventing.Broker, eventing.Channel, eventing.Trigger, eventing.Subscription, "Service"} {
		// The second answer is remembered.
		for range 2 {
			if key := (eventing.Key{Kind: kind, Namespace: "billing", Name: "x"}); readable(key) {
				s.shown = append(s.shown, key)
			}
		}
	}
	return &duckv1.EventTrace{}, nil
}

// TestGet answers for existing objects once traces are set, and asks the authorizer about objects of other namespaces.
func TestGet(t *testing.T) {
	var asked []string
	allow := authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		asked = append(asked, fmt.Sprintf("%s %s %s/%s.%s %s/%s", a.GetUser().GetName(), a.GetVerb(), a.GetResource(), a.GetSubresource(), a.GetAPIGroup(), a.GetNamespace(), a.GetName()))
		switch a.GetResource() {
		case "brokers", "subscriptions":
			return authorizer.DecisionAllow, "", nil
		case "channels":
			return authorizer.DecisionNoOpinion, "", context.DeadlineExceeded
		}
		return authorizer.DecisionDeny, "", nil
	})
	r := &REST{Kind: eventing.Broker, Parents: parents{}, Traces: &Late{}, Authorizer: allow}
	ctx := request.WithUser(request.WithNamespace(t.Context(), "shop"), &user.DefaultInfo{Name: "jane"})
	options := &duckv1.EventTraceOptions{ID: "1"}
	if _, err := r.Get(ctx, "orders", options); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("without traces: %v", err)
	}
	source := &traces{}
	r.Traces.Set(source)
	if _, err := r.Get(ctx, "nowhere", options); !apierrors.IsNotFound(err) {
		t.Errorf("without the Broker: %v", err)
	}
	if _, err := r.Get(ctx, "orders", &duckv1.EventTraceOptions{}); !apierrors.IsBadRequest(err) {
		t.Errorf("without parameters: %v", err)
	}
	if _, err := r.Get(ctx, "orders", options); err != nil {
		t.Fatal(err)
	}
	if want := (eventing.Key{Kind: eventing.Broker, Namespace: "shop", Name: "orders"}); source.stream != want {
		t.Errorf("asked for the trace of %s", source.stream)
	}
	want := []string{
		"jane get brokers/trace.eventing.knative.dev billing/x", "jane get channels/trace.messaging.knative.dev billing/x",
		"jane get triggers/.eventing.knative.dev billing/x", "jane get subscriptions/.messaging.knative.dev billing/x",
	}
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Errorf("permissions (-want +got):\n%s", diff)
	}
	broker, subscription := eventing.Key{Kind: eventing.Broker, Namespace: "billing", Name: "x"}, eventing.Key{Kind: eventing.Subscription, Namespace: "billing", Name: "x"}
	if diff := cmp.Diff([]eventing.Key{broker, broker, subscription, subscription}, source.shown); diff != "" {
		t.Errorf("shown (-want +got):\n%s", diff)
	}
	source.shown = nil
	if _, err := r.Get(request.WithNamespace(t.Context(), "shop"), "orders", options); err != nil || len(source.shown) > 0 {
		t.Errorf("without a user: %v, shown %v", err, source.shown)
	}
}

// TestTable has a row for each fact.
func TestTable(t *testing.T) {
	at := metav1.NewMicroTime(time.Date(2026, 1, 2, 3, 4, 5, 6_000_000, time.UTC))
	object := func(kind, name string) duckv1.TracedObject {
		return duckv1.TracedObject{Kind: kind, Namespace: "shop", Name: name}
	}
	trace := &duckv1.EventTrace{
		Events: []duckv1.TracedEvent{
			{
				Number: 1, ID: "a", At: object("Broker", "orders"), AcceptedAt: &at, Sender: "jane", SenderAddress: "10.0.0.1",
				Deliveries: []duckv1.TracedDelivery{
					{Consumer: object("Trigger", "pending"), State: duckv1.TracedPending, Reason: "no attempt"},
					{Consumer: object("Trigger", ""), Hidden: true},
					{Consumer: object("Trigger", "failing"), State: duckv1.TracedDropped, Reason: "503", Attempts: []duckv1.TracedAttempt{
						{Number: 1, To: duckv1.TracedToSubscriber, Time: at, DurationMilliseconds: 1000, Address: "http://a", Code: 503, Error: "503", NextAttempt: &at},
						{Number: 2, To: duckv1.TracedToSubscriber, Time: at, Address: "http://a"},
					}},
				},
				Unmatched: []duckv1.TracedMismatch{{Consumer: object("Trigger", "other"), Filter: "filters[0].exact.type", Reason: "must be x", Changed: true}},
			},
			{Number: 2, ID: "b", At: object("Broker", "orders"), Parent: &duckv1.TracedParent{Number: 1, Consumer: object("Trigger", "failing"), As: duckv1.TracedAsReply}},
			{Number: 3, ID: "c", At: object("Broker", "orders"), Unrecorded: true},
			{Number: 4, At: object("Channel", ""), Hidden: true},
		},
		Incomplete: []string{"replica 2 does not answer"},
	}
	table, err := (&REST{}).ConvertToTable(t.Context(), trace, nil)
	if err != nil {
		t.Fatal(err)
	}
	var rows [][]any
	for _, row := range table.Rows {
		if len(row.Cells) != len(table.ColumnDefinitions) {
			t.Errorf("a row has %d cells, of %d columns", len(row.Cells), len(table.ColumnDefinitions))
		}
		rows = append(rows, row.Cells)
	}
	const clock = "03:04:05.006"
	want := [][]any{
		{clock, "1 a", "Broker shop/orders", "Accepted", "", "", "from jane"},
		{"", "1 a", "Trigger shop/pending", "Pending", "", "", "no attempt"},
		{"", "1 a", "Trigger shop/", "Matched", "", "", "in another namespace"},
		{clock, "1 a", "Trigger shop/failing", "Subscriber", "503", "1000ms", "http://a: 503, next attempt at " + clock},
		{clock, "1 a", "Trigger shop/failing", "Subscriber", "", "0ms", "http://a"},
		{"", "1 a", "Trigger shop/failing", "Dropped", "", "", "503"},
		{"", "1 a", "Trigger shop/other", "NotMatched", "", "", "filters[0].exact.type must be x (Triggers have changed since)"},
		{"", "2 b", "Broker shop/orders", "Accepted", "", "", "Reply of event 1 by Trigger shop/failing"},
		{"", "3 c", "Broker shop/orders", "Accepted", "", "", "the record of the acceptance is missing"},
		{"", "4 ", "Channel shop/", "Accepted", "", "", "in another namespace"},
		{"", "", "", "Incomplete", "", "", "replica 2 does not answer"},
	}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	if table, err := (&REST{}).ConvertToTable(t.Context(), trace, &metav1.TableOptions{NoHeaders: true}); err != nil || len(table.ColumnDefinitions) > 0 {
		t.Errorf("without headers: %v, %v", table, err)
	}
	if _, err := (&REST{}).ConvertToTable(t.Context(), &eventingv1.Broker{}, nil); err == nil {
		t.Error("converted another kind")
	}
}
