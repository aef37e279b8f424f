package plugin

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

func microTime(milliseconds int) metav1.MicroTime {
	return metav1.NewMicroTime(time.Date(2026, 1, 2, 3, 4, 5, milliseconds*1_000_000, time.UTC))
}

// tracedOrder is an event that was replied to, whose reply became a dead letter in a Channel.
func tracedOrder() *duckv1.EventTrace {
	object := func(kind, name string) duckv1.TracedObject {
		return duckv1.TracedObject{Kind: kind, Namespace: "shop", Name: name}
	}
	at, next := microTime(6), microTime(106)
	return &duckv1.EventTrace{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders"},
		Events: []duckv1.TracedEvent{
			{
				Number: 1, ID: "1001", Source: "/shop", Type: "order", TraceID: "4bf9", At: object("Broker", "orders"), AcceptedAt: &at, Sender: "jane", SenderAddress: "10.0.0.1",
				Deliveries: []duckv1.TracedDelivery{
					{Consumer: object("Trigger", "billing"), State: duckv1.TracedDelivered, Attempts: []duckv1.TracedAttempt{
						{Number: 1, To: duckv1.TracedToSubscriber, Time: at, DurationMilliseconds: 4, Address: "http://billing/", Code: 200, Reply: &duckv1.TracedReply{ID: "r-1", Source: "/billing"}},
						{Number: 1, To: duckv1.TracedToReply, Time: at, Address: "http://ingress/shop/orders", Code: 202},
					}},
					{Consumer: duckv1.TracedObject{Kind: "Trigger", Namespace: "other"}, Hidden: true},
					{Consumer: object("Trigger", "pending"), State: duckv1.TracedPending, Reason: "no attempt yet"},
				},
				Unmatched: []duckv1.TracedMismatch{{Consumer: object("Trigger", "refunds"), Filter: "filters[0].exact.type", Reason: `must be "refund"`, Changed: true}},
			},
			{
				Number: 2, ID: "r-1", Type: "bill", At: object("Broker", "orders"), AcceptedAt: &at,
				Parent: &duckv1.TracedParent{Number: 1, Consumer: object("Trigger", "billing"), As: duckv1.TracedAsReply},
				Deliveries: []duckv1.TracedDelivery{{Consumer: object("Trigger", "failing"), State: duckv1.TracedDeadLettered, Attempts: []duckv1.TracedAttempt{
					{Number: 1, To: duckv1.TracedToSubscriber, Time: at, DurationMilliseconds: 1500, Address: "http://failing/", Error: "connection refused", NextAttempt: &next},
					{Number: 1, To: duckv1.TracedToDeadLetterSink, Time: next, Address: "http://dead/", Code: 202},
				}}},
			},
			{
				Number: 3, ID: "r-1", At: duckv1.TracedObject{Kind: "Channel", Namespace: "archive", Name: "dead"}, Unrecorded: true,
				Parent: &duckv1.TracedParent{Number: 2, Consumer: object("Trigger", "failing"), As: duckv1.TracedAsDeadLetter},
			},
			{Number: 4, At: duckv1.TracedObject{Kind: "Broker", Namespace: "other"}, Hidden: true, Parent: &duckv1.TracedParent{Number: 1, Consumer: object("Trigger", "pending"), As: duckv1.TracedAsDelivery}},
			{Number: 5, ID: "1001", At: object("Broker", "orders"), SenderAddress: "10.0.0.2"},
		},
		Incomplete: []string{"replica 2 does not answer"},
	}
}

// TestWriteTrace prints each fact of a trace once, below the delivery from which it followed.
func TestWriteTrace(t *testing.T) {
	for name, tt := range map[string]struct {
		wide bool
		want string
	}{
		"text": {want: `
Event 1001, type order: accepted by Broker orders at 03:04:05.006 from jane (10.0.0.1)
├─ Trigger billing: Delivered
│  ├─ attempt 1 at 03:04:05.006 to http://billing/: 200 after 4ms, reply r-1
│  ├─ reply attempt 1 at 03:04:05.006 to http://ingress/shop/orders: 202 after <1ms
│  └─ Reply: Event r-1, type bill: accepted by Broker orders at 03:04:05.006
│     └─ Trigger failing: DeadLettered
│        ├─ attempt 1 at 03:04:05.006 to http://failing/: no response after 1.5s: connection refused, next attempt at 03:04:05.106
│        ├─ dead letter sink attempt 1 at 03:04:05.106 to http://dead/: 202 after <1ms
│        └─ Dead letter: Event r-1: accepted by Channel archive/dead (the record of the acceptance is missing)
├─ Trigger in namespace other: matched, but may not be read with these permissions
├─ Trigger pending: Pending: no attempt yet
│  └─ Event accepted by Broker in namespace other, which may not be traced with these permissions
└─ Trigger refunds: not matched: filters[0].exact.type must be "refund" (Triggers have changed since)
Event 1001: accepted by Broker orders from 10.0.0.2
Incomplete: replica 2 does not answer
`},
		"wide": {wide: true, want: `
Event 1001, type order, source /shop, trace 4bf9: accepted by Broker shop/orders at 2026-01-02T03:04:05.006Z from jane (10.0.0.1)
├─ Trigger shop/billing: Delivered
│  ├─ attempt 1 at 2026-01-02T03:04:05.006Z to http://billing/: 200 after 4ms, reply r-1 of source /billing
│  ├─ reply attempt 1 at 2026-01-02T03:04:05.006Z to http://ingress/shop/orders: 202 after <1ms
│  └─ Reply: Event r-1, type bill: accepted by Broker shop/orders at 2026-01-02T03:04:05.006Z
│     └─ Trigger shop/failing: DeadLettered
│        ├─ attempt 1 at 2026-01-02T03:04:05.006Z to http://failing/: no response after 1.5s: connection refused, next attempt at 2026-01-02T03:04:05.106Z
│        ├─ dead letter sink attempt 1 at 2026-01-02T03:04:05.106Z to http://dead/: 202 after <1ms
│        └─ Dead letter: Event r-1: accepted by Channel archive/dead (the record of the acceptance is missing)
├─ Trigger in namespace other: matched, but may not be read with these permissions
├─ Trigger shop/pending: Pending: no attempt yet
│  └─ Event accepted by Broker in namespace other, which may not be traced with these permissions
└─ Trigger shop/refunds: not matched: filters[0].exact.type must be "refund" (Triggers have changed since)
Event 1001: accepted by Broker shop/orders from 10.0.0.2
Incomplete: replica 2 does not answer
`},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			if err := writeTrace(&out, tracedOrder(), tt.wide); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want[1:], out.String()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
