package eventing

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestFilters checks that a Trigger receives exactly the events that its filters match, and that filters override filter
// (eventing TriggerFilter-1 to -5, eventing Content Based Routing-4 to -6, eventing Broker Lifecycle-4).
// It covers eventing TriggerFilter-6.
func TestFilters(t *testing.T) {
	type filter = eventingv1.SubscriptionsAPIFilter
	type attributes = map[string]string
	attribute := func(a attributes) *eventingv1.TriggerFilter { return &eventingv1.TriggerFilter{Attributes: a} }
	events := []event{
		{id: "plain", kind: "order"},
		{id: "upper", kind: "Order"},
		{id: "gold", kind: "order", extensions: attributes{"level": "gold", "region": "eu-1"}},
		{id: "silver", kind: "order.paid", extensions: attributes{"level": "silver", "region": "us-1"}},
		{id: "other", kind: "invoice", extensions: attributes{"level": "Gold"}},
	}
	for i, tt := range []struct {
		name    string
		filter  *eventingv1.TriggerFilter
		filters []filter
		want    []string
	}{
		{"none", nil, nil, []string{"plain", "upper", "gold", "silver", "other"}},
		{"empty", attribute(nil), nil, []string{"plain", "upper", "gold", "silver", "other"}},
		{"type", attribute(attributes{"type": "order"}), nil, []string{"plain", "gold"}},
		{"extension", attribute(attributes{"level": "gold"}), nil, []string{"gold"}},
		{"any value", attribute(attributes{"level": ""}), nil, []string{"gold", "silver", "other"}},
		{"all keys", attribute(attributes{"type": "order", "level": "", "source": "/test"}), nil, []string{"gold"}},
		{"no such attribute", attribute(attributes{"type": "order", "missing": ""}), nil, nil},
		{"the id", attribute(attributes{"id": "other"}), nil, []string{"other"}},
		{"exact", nil, []filter{{Exact: attributes{"type": "order", "level": "gold"}}}, []string{"gold"}},
		{"prefix", nil, []filter{{Prefix: attributes{"type": "order", "region": "us"}}}, []string{"silver"}},
		{"suffix", nil, []filter{{Suffix: attributes{"region": "-1"}}}, []string{"gold", "silver"}},
		{"all", nil, []filter{{All: []filter{{Prefix: attributes{"type": "order"}}, {Suffix: attributes{"level": "r"}}}}}, []string{"silver"}},
		{"any", nil, []filter{{Any: []filter{{Exact: attributes{"type": "invoice"}}, {Exact: attributes{"level": "gold"}}}}}, []string{"gold", "other"}},
		{"not", nil, []filter{{Not: &filter{Prefix: attributes{"type": "order"}}}}, []string{"upper", "other"}},
		{"cesql", nil, []filter{{CESQL: "type LIKE 'order%' AND EXISTS level AND UPPER(level) = 'GOLD'"}}, []string{"gold"}},
		{"several", nil, []filter{{Prefix: attributes{"type": "order"}}, {Exact: attributes{"level": "gold"}}}, []string{"gold"}},
		{"instead of the filter", attribute(attributes{"type": "invoice"}), []filter{{Exact: attributes{"level": "gold"}}}, []string{"gold"}},
	} {
		t.Run(fmt.Sprint(i, " ", tt.name), func(t *testing.T) {
			t.Parallel()
			ns := namespace()
			sink := harness.NewSink(t)
			subscriber, all := sink.At("/"), sink.At("/all")
			address := shared.broker(t, ns, "orders")
			shared.trigger(t, ns, "orders", "all", all.URL)
			shared.trigger(t, ns, "orders", "orders", subscriber.URL, func(t *eventingv1.Trigger) { t.Spec.Filter, t.Spec.Filters = tt.filter, tt.filters })
			mustPost(t, address, events...)
			// The last event, after which all others are delivered.
			last := numbered("last", "order", 1)[0]
			mustPost(t, address, last)
			for s, want := range map[*harness.Subscriber][]string{all: append(ids(events), last.id), subscriber: tt.want} {
				if err := s.AwaitAll(bounded(t), want); err != nil {
					t.Fatal(err)
				}
			}
			got := subscriber.Attempts()
			delete(got, last.id)
			want := map[string]int{}
			for _, id := range tt.want {
				want[id] = 1
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("deliveries (-want +got):\n%s", diff)
			}
		})
	}
}

// TestSameDestination checks that each Trigger and each Subscription has its own delivery of each event, even with the same
// destination (eventing Content Based Routing-6 and -7, eventing Topology Based Routing-4 and -6, eventing Broker Lifecycle-2
// and -4, eventing Channel Lifecycle-2 and -4).
func TestSameDestination(t *testing.T) {
	ns := namespace()
	sink := harness.NewSink(t)
	triggers, subscriptions, others := sink.At("/triggers"), sink.At("/subscriptions"), sink.At("/others")
	broker, channel := shared.broker(t, ns, "orders"), shared.channel(t, ns, "orders")
	shared.broker(t, ns, "others")
	shared.channel(t, ns, "others")
	for i := range 3 {
		name := fmt.Sprintf("orders-%d", i)
		shared.trigger(t, ns, "orders", name, triggers.URL)
		shared.subscribe(t, newSubscription(ns, "orders", name, to(uri(subscriptions.URL))))
	}
	shared.trigger(t, ns, "others", "others", others.URL)
	shared.subscribe(t, newSubscription(ns, "others", "others", to(uri(others.URL))))
	events := numbered("event", "order", 10)
	mustPost(t, broker, events...)
	mustPost(t, channel, events...)
	for _, s := range []*harness.Subscriber{triggers, subscriptions} {
		if err := s.AwaitAttempts(bounded(t), func(attempts map[string]int) error {
			if slices.ContainsFunc(ids(events), func(id string) bool { return attempts[id] != 3 }) {
				return fmt.Errorf("events were delivered as often as %v, want 3 times each", attempts)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	if n := others.Requests(); n > 0 {
		t.Errorf("consumers of another Broker and Channel got %d requests", n)
	}
}
