package inspect

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

func readiness(status corev1.ConditionStatus, reason, message string) duckv1.Status {
	return duckv1.Status{Conditions: duckv1.Conditions{{Type: duckv1.ConditionReady, Status: status, Reason: reason, Message: message}}}
}

// shop returns a graph with one object of each kind and state.
func shop() *Graph {
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "shop", Name: name} }
	service := func(namespace, name string) *duckv1.Destination {
		return &duckv1.Destination{Ref: &duckv1.KReference{APIVersion: "serving.knative.dev/v1", Kind: "Service", Namespace: namespace, Name: name}}
	}
	ready := readiness(corev1.ConditionTrue, "", "")
	orders := eventingv1.Broker{ObjectMeta: named("orders")}
	orders.Status.Status = ready
	orders.Spec.Delivery = &duckv1.DeliverySpec{DeadLetterSink: &duckv1.Destination{URI: "http://dead.example.com/"}}
	billing := eventingv1.Trigger{ObjectMeta: named("billing"), Spec: eventingv1.TriggerSpec{
		Broker: "orders", Subscriber: *service("", "billing"), Filter: &eventingv1.TriggerFilter{Attributes: map[string]string{"type": "order", "source": "/shop"}},
	}}
	billing.Status.Status = ready
	lost := eventingv1.Trigger{ObjectMeta: named("lost"), Spec: eventingv1.TriggerSpec{Broker: "gone", Subscriber: *service("", "none")}}
	lost.Status.Status = readiness(corev1.ConditionFalse, "BrokerMissing", "there is no Broker gone")
	mails := messagingv1.Channel{ObjectMeta: named("mails")}
	mails.Status.Status = readiness(corev1.ConditionUnknown, "Starting", "not yet")
	send := messagingv1.Subscription{ObjectMeta: named("send"), Spec: messagingv1.SubscriptionSpec{
		Channel:    duckv1.KReference{APIVersion: "messaging.knative.dev/v1", Kind: "Channel", Name: "mails"},
		Subscriber: service("post", "office"),
		Reply:      &duckv1.Destination{Ref: &duckv1.KReference{APIVersion: "eventing.knative.dev/v1", Kind: "Broker", Name: "orders"}},
		Delivery:   &duckv1.DeliverySpec{DeadLetterSink: &duckv1.Destination{Ref: &duckv1.KReference{APIVersion: "v1", Kind: "Service", Name: "sink"}}},
	}}
	send.Status.Status = ready
	bills, web := servingv1.Service{ObjectMeta: named("billing")}, servingv1.Service{ObjectMeta: named("web")}
	bills.Status.Status = ready
	b := &graphBuilder{Graph: &Graph{}, namespace: "shop", nodes: map[string]*GraphNode{}, read: map[string]bool{
		"Broker": true, "Trigger": true, "Channel": true, "Subscription": true, "Service": true,
	}}
	b.add(&graphObjects{
		brokers: &eventingv1.BrokerList{Items: []eventingv1.Broker{orders}}, triggers: &eventingv1.TriggerList{Items: []eventingv1.Trigger{billing, lost}},
		channels: &messagingv1.ChannelList{Items: []messagingv1.Channel{mails}}, subscriptions: &messagingv1.SubscriptionList{Items: []messagingv1.Subscription{send}},
		services: &servingv1.ServiceList{Items: []servingv1.Service{bills, web}},
	})
	return b.Graph
}

func writeTrees(to io.Writer, g *Graph, namespace string, wide bool) (err error) {
	for _, tree := range g.Trees(namespace, wide) {
		err = errors.Join(err, tree.Write(to))
	}
	return err
}

// TestTrees prints the ways of events with the readiness of each object.
func TestTrees(t *testing.T) {
	want := `
Broker orders: ready
├─ dead letters -> http://dead.example.com/
└─ Trigger billing [source=/shop and type=order]: ready
   ├─ -> Service billing: ready
   └─ reply -> Broker orders: ready
Channel mails: not ready yet, Starting
└─ Subscription send: ready
   ├─ -> Service post/office
   ├─ reply -> Broker orders: ready
   └─ dead letters -> core/v1 Service sink
Broker gone: does not exist
└─ Trigger lost: not ready, BrokerMissing: there is no Broker gone
   ├─ -> Service none: does not exist
   └─ reply -> Broker gone: does not exist
Service web: not ready yet
`
	var out strings.Builder
	if err := writeTrees(&out, shop(), "shop", false); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want[1:], out.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	out.Reset()
	if err := writeTrees(&out, shop(), "shop", true); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"Broker shop/orders: ready", "Channel shop/mails: not ready yet, Starting: not yet"} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("no %q in the wide output:\n%s", line, out.String())
		}
	}
}

// TestWriteDot prints all nodes and edges for Graphviz.
func TestWriteDot(t *testing.T) {
	var out strings.Builder
	if err := shop().WriteDot(&out); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		`  "Broker/shop/orders" [label="Broker\nshop/orders" color=black]`,
		`  "Trigger/shop/billing" [label="Trigger\nshop/billing\nsource=/shop and type=order" color=black]`,
		`  "Trigger/shop/lost" [label="Trigger\nshop/lost" color=red]`,
		`  "Service/post/office" [label="Service\npost/office" color=gray]`,
		`  "Broker/shop/orders" -> "Trigger/shop/billing" [style=solid]`,
		`  "Trigger/shop/billing" -> "Broker/shop/orders" [style=dashed]`,
		`  "Broker/shop/orders" -> "http://dead.example.com/" [style=dotted]`,
	} {
		if !strings.Contains(out.String(), line+"\n") {
			t.Errorf("no line %s in:\n%s", line, out.String())
		}
	}
	if got, want := dotString("a\"\\\nb"), `"a\"\\\nb"`; got != want {
		t.Errorf("quoted %s, want %s", got, want)
	}
}

// TestFilterOf describes each dialect.
func TestFilterOf(t *testing.T) {
	exact := eventingv1.SubscriptionsAPIFilter{Exact: map[string]string{"type": "a"}}
	for want, spec := range map[string]eventingv1.TriggerSpec{
		"":                       {},
		"type=a":                 {Filters: []eventingv1.SubscriptionsAPIFilter{exact}},
		"type=a and not type=a":  {Filters: []eventingv1.SubscriptionsAPIFilter{exact, {Not: &exact}}},
		"(type=a or type=a)":     {Filters: []eventingv1.SubscriptionsAPIFilter{{Any: []eventingv1.SubscriptionsAPIFilter{exact, exact}}}},
		"(type=a)":               {Filters: []eventingv1.SubscriptionsAPIFilter{{All: []eventingv1.SubscriptionsAPIFilter{exact}}}},
		"type begins with a":     {Filters: []eventingv1.SubscriptionsAPIFilter{{Prefix: map[string]string{"type": "a"}}}},
		"type ends with a":       {Filters: []eventingv1.SubscriptionsAPIFilter{{Suffix: map[string]string{"type": "a"}}}},
		"type = 'a'":             {Filters: []eventingv1.SubscriptionsAPIFilter{{CESQL: "type = 'a'"}}},
		"source=/b and type=any": {Filter: &eventingv1.TriggerFilter{Attributes: map[string]string{"type": "any", "source": "/b"}}},
	} {
		if got := filterOf(&spec); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
