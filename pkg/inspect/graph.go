// Package inspect answers questions of users by the API of the server, with the permissions of the user, for kubectl knative and the console.
package inspect

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned"
)

// Graph is the objects that events pass, and the ways between them.
type Graph struct {
	Nodes []*GraphNode `json:"nodes"`
	Edges []*GraphEdge `json:"edges"`
	// Incomplete lists the resources that the user may not read.
	Incomplete []string `json:"incomplete,omitempty"`
}

// GraphNode is an object, or an address that is none.
type GraphNode struct {
	// ID identifies the node in the graph, such as Broker/shop/orders or the address.
	ID        string `json:"id"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	// URI is the address of a node that is not an object.
	URI string `json:"uri,omitempty"`
	// Ready is the status of the condition Ready; Missing for an object that does not exist, and empty if it was not read.
	Ready   string `json:"ready,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Filter describes the events that a Trigger matches.
	Filter string `json:"filter,omitempty"`
}

// GraphEdge is a way of events.
type GraphEdge struct {
	From string `json:"from"`
	To   string `json:"to"`
	// As is Consumer (a Trigger or Subscription), Subscriber, Reply or DeadLetterSink.
	As string `json:"as"`
}

// The values of GraphEdge.As.
const (
	AsConsumer       = "Consumer"
	AsSubscriber     = "Subscriber"
	AsReply          = "Reply"
	AsDeadLetterSink = "DeadLetterSink"
)

const missing = "Missing"

// ReadGraph reads the objects of a namespace, or of all namespaces if it is empty. It fails if the user may read none of the resources.
func ReadGraph(ctx context.Context, client versioned.Interface, namespace string) (*Graph, error) {
	b := &graphBuilder{Graph: &Graph{Nodes: []*GraphNode{}, Edges: []*GraphEdge{}}, namespace: namespace, nodes: map[string]*GraphNode{}, read: map[string]bool{}}
	var objects graphObjects
	var refused error
	for _, resource := range []struct {
		kind string
		list func() error
	}{
		{"Broker", func() error {
			list, err := client.EventingV1().Brokers(namespace).List(ctx, metav1.ListOptions{})
			objects.brokers = list
			return err
		}},
		{"Trigger", func() error {
			list, err := client.EventingV1().Triggers(namespace).List(ctx, metav1.ListOptions{})
			objects.triggers = list
			return err
		}},
		{"Channel", func() error {
			list, err := client.MessagingV1().Channels(namespace).List(ctx, metav1.ListOptions{})
			objects.channels = list
			return err
		}},
		{"Subscription", func() error {
			list, err := client.MessagingV1().Subscriptions(namespace).List(ctx, metav1.ListOptions{})
			objects.subscriptions = list
			return err
		}},
		{"Service", func() error {
			list, err := client.ServingV1().Services(namespace).List(ctx, metav1.ListOptions{})
			objects.services = list
			return err
		}},
	} {
		err := resource.list()
		switch {
		case err == nil:
			b.read[resource.kind] = true
		case apierrors.IsForbidden(err):
			refused = err
			b.Incomplete = append(b.Incomplete, err.Error())
		default:
			return nil, err
		}
	}
	if len(b.read) == 0 {
		return nil, refused
	}
	b.add(&objects)
	return b.Graph, nil
}

// graphObjects are the objects of a graph. Lists that were not read are empty.
type graphObjects struct {
	brokers       *eventingv1.BrokerList
	triggers      *eventingv1.TriggerList
	channels      *messagingv1.ChannelList
	subscriptions *messagingv1.SubscriptionList
	services      *servingv1.ServiceList
}

// graphBuilder builds a graph.
type graphBuilder struct {
	*Graph
	// namespace is empty for all namespaces.
	namespace string
	nodes     map[string]*GraphNode
	// read has the kinds whose objects have been read.
	read map[string]bool
}

func (b *graphBuilder) add(objects *graphObjects) {
	// All objects come first, so that references to others are known to be missing.
	if objects.brokers != nil {
		for i := range objects.brokers.Items {
			o := &objects.brokers.Items[i]
			b.object("Broker", o.ObjectMeta, &o.Status.Status)
		}
	}
	if objects.channels != nil {
		for i := range objects.channels.Items {
			o := &objects.channels.Items[i]
			b.object("Channel", o.ObjectMeta, &o.Status.Status)
		}
	}
	if objects.services != nil {
		for i := range objects.services.Items {
			o := &objects.services.Items[i]
			b.object("Service", o.ObjectMeta, &o.Status.Status)
		}
	}
	if objects.brokers != nil {
		for i := range objects.brokers.Items {
			o := &objects.brokers.Items[i]
			b.deadLetters(nodeID("Broker", o.Namespace, o.Name), o.Namespace, o.Spec.Delivery)
		}
	}
	if objects.channels != nil {
		for i := range objects.channels.Items {
			o := &objects.channels.Items[i]
			b.deadLetters(nodeID("Channel", o.Namespace, o.Name), o.Namespace, o.Spec.Delivery)
		}
	}
	if objects.triggers != nil {
		for i := range objects.triggers.Items {
			b.trigger(&objects.triggers.Items[i])
		}
	}
	if objects.subscriptions != nil {
		for i := range objects.subscriptions.Items {
			b.subscription(&objects.subscriptions.Items[i])
		}
	}
}

func (b *graphBuilder) trigger(t *eventingv1.Trigger) {
	n := b.object("Trigger", t.ObjectMeta, &t.Status.Status)
	n.Filter = filterOf(&t.Spec)
	from := t.BrokerName()
	broker := b.reference("Broker", from.Namespace, from.Name)
	b.edge(broker, n.ID, AsConsumer)
	b.destination(n.ID, t.Namespace, &t.Spec.Subscriber, AsSubscriber)
	// Replies return to the Broker (eventing, Broker: reply events).
	b.edge(n.ID, broker, AsReply)
	b.deadLetters(n.ID, t.Namespace, t.Spec.Delivery)
}

func (b *graphBuilder) subscription(s *messagingv1.Subscription) {
	n := b.object("Subscription", s.ObjectMeta, &s.Status.Status)
	from := s.ChannelName()
	b.edge(b.reference(s.Spec.Channel.Kind, from.Namespace, from.Name), n.ID, AsConsumer)
	b.destination(n.ID, s.Namespace, s.Spec.Subscriber, AsSubscriber)
	b.destination(n.ID, s.Namespace, s.Spec.Reply, AsReply)
	b.deadLetters(n.ID, s.Namespace, s.Spec.Delivery)
}

func (b *graphBuilder) deadLetters(from, namespace string, delivery *duckv1.DeliverySpec) {
	if delivery != nil {
		b.destination(from, namespace, delivery.DeadLetterSink, AsDeadLetterSink)
	}
}

// destination adds the edge to a destination, if there is one.
func (b *graphBuilder) destination(from, namespace string, d *duckv1.Destination, as string) {
	switch {
	case d == nil:
	case d.Ref == nil:
		if d.URI != "" {
			b.edge(from, b.node(&GraphNode{ID: d.URI, Kind: "URI", URI: d.URI}).ID, as)
		}
	default:
		kind := d.Ref.Kind
		if kind == "Service" && d.Ref.APIVersion == "v1" {
			kind = "core/v1 Service"
		}
		b.edge(from, b.reference(kind, cmp.Or(d.Ref.Namespace, namespace), d.Ref.Name), as)
	}
}

// object adds a node with the condition Ready of an object.
func (b *graphBuilder) object(kind string, object metav1.ObjectMeta, status *duckv1.Status) *GraphNode {
	n := &GraphNode{ID: nodeID(kind, object.Namespace, object.Name), Kind: kind, Namespace: object.Namespace, Name: object.Name, Ready: string(corev1.ConditionUnknown)}
	if ready := status.Conditions.Get(duckv1.ConditionReady); ready != nil {
		n.Ready, n.Reason, n.Message = string(ready.Status), ready.Reason, ready.Message
	}
	return b.node(n)
}

// reference adds a node for a referenced object, unless it is known, and returns its ID.
func (b *graphBuilder) reference(kind, namespace, name string) string {
	n := &GraphNode{ID: nodeID(kind, namespace, name), Kind: kind, Namespace: namespace, Name: name}
	if b.read[kind] && (b.namespace == "" || b.namespace == namespace) {
		n.Ready = missing
	}
	return b.node(n).ID
}

// node adds a node unless one of its ID is known, and returns the known one.
func (b *graphBuilder) node(n *GraphNode) *GraphNode {
	if known := b.nodes[n.ID]; known != nil {
		return known
	}
	b.nodes[n.ID] = n
	b.Nodes = append(b.Nodes, n)
	return n
}

func (b *graphBuilder) edge(from, to, as string) {
	b.Edges = append(b.Edges, &GraphEdge{From: from, To: to, As: as})
}

func nodeID(kind, namespace, name string) string { return kind + "/" + namespace + "/" + name }

// filterOf describes the filter of a Trigger in one line. It is empty if the Trigger matches all events.
func filterOf(spec *eventingv1.TriggerSpec) string {
	if len(spec.Filters) > 0 {
		return filtersText(spec.Filters, " and ")
	}
	if spec.Filter == nil {
		return ""
	}
	return attributesText(spec.Filter.Attributes, "=")
}

func filtersText(all []eventingv1.SubscriptionsAPIFilter, separator string) string {
	var texts []string
	for i := range all {
		texts = append(texts, filterText(&all[i]))
	}
	return strings.Join(texts, separator)
}

func filterText(f *eventingv1.SubscriptionsAPIFilter) string {
	switch {
	case len(f.All) > 0:
		return "(" + filtersText(f.All, " and ") + ")"
	case len(f.Any) > 0:
		return "(" + filtersText(f.Any, " or ") + ")"
	case f.Not != nil:
		return "not " + filterText(f.Not)
	case len(f.Exact) > 0:
		return attributesText(f.Exact, "=")
	case len(f.Prefix) > 0:
		return attributesText(f.Prefix, " begins with ")
	case len(f.Suffix) > 0:
		return attributesText(f.Suffix, " ends with ")
	}
	return f.CESQL
}

func attributesText(attributes map[string]string, relation string) string {
	var texts []string
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		texts = append(texts, name+relation+attributes[name])
	}
	return strings.Join(texts, " and ")
}

// Trees returns a tree for each Broker and Channel, and the Services that no event reaches. Objects of namespace are shown without the
// namespace unless wide is true.
func (g *Graph) Trees(namespace string, wide bool) (trees []*Node) {
	t := &graphTree{Graph: g, namespace: namespace, wide: wide, nodes: map[string]*GraphNode{}, ways: map[string][]*GraphEdge{}}
	reached := map[string]bool{}
	for _, n := range g.Nodes {
		t.nodes[n.ID] = n
	}
	consumed := map[string]bool{}
	for _, edge := range g.Edges {
		t.ways[edge.From] = append(t.ways[edge.From], edge)
		reached[edge.To] = true
		if edge.As == AsConsumer {
			consumed[edge.From] = true
		}
	}
	for _, n := range g.Nodes {
		if n.Kind == "Broker" || n.Kind == "Channel" || consumed[n.ID] {
			trees = append(trees, t.tree(n))
		}
	}
	for _, n := range g.Nodes {
		if n.Kind == "Service" && !reached[n.ID] {
			trees = append(trees, t.leaf("", n))
		}
	}
	return trees
}

// graphTree makes trees of a graph.
type graphTree struct {
	*Graph
	namespace string
	wide      bool
	nodes     map[string]*GraphNode
	ways      map[string][]*GraphEdge
}

// tree returns a Broker or Channel with its consumers, and their destinations. Destinations that have consumers are trees of their own.
func (t *graphTree) tree(n *GraphNode) *Node {
	root := t.leaf("", n)
	for _, way := range t.ways[n.ID] {
		below := t.leaf(wayLabels[way.As], t.nodes[way.To])
		if way.As == AsConsumer {
			for _, next := range t.ways[way.To] {
				below.Children = append(below.Children, t.leaf(wayLabels[next.As], t.nodes[next.To]))
			}
		}
		root.Children = append(root.Children, below)
	}
	return root
}

// wayLabels are the prefixes of destinations.
var wayLabels = map[string]string{AsSubscriber: "-> ", AsReply: "reply -> ", AsDeadLetterSink: "dead letters -> "}

func (t *graphTree) leaf(label string, n *GraphNode) *Node {
	if n.URI != "" {
		return &Node{Text: label + n.URI, Object: n, Reference: label != ""}
	}
	name := n.Name
	if t.wide || n.Namespace != t.namespace {
		name = n.Namespace + "/" + n.Name
	}
	text := label + n.Kind + " " + name
	if n.Filter != "" {
		text += " [" + n.Filter + "]"
	}
	switch n.Ready {
	case "":
	case string(corev1.ConditionTrue):
		text += ": ready"
	case missing:
		text += ": does not exist"
	default:
		state := ": not ready"
		if n.Ready == string(corev1.ConditionUnknown) {
			state = ": not ready yet"
		}
		text += state
		if n.Reason != "" {
			text += ", " + n.Reason
		}
		if n.Message != "" && (t.wide || n.Ready == string(corev1.ConditionFalse)) {
			text += ": " + n.Message
		}
	}
	return &Node{Text: text, Object: n, Reference: label != ""}
}

// dotColors are the colors of nodes by readiness.
var dotColors = map[string]string{string(corev1.ConditionTrue): "black", string(corev1.ConditionFalse): "red", string(corev1.ConditionUnknown): "orange", missing: "red"}

// WriteDot prints the graph in the language of Graphviz.
func (g *Graph) WriteDot(to io.Writer) error {
	var b strings.Builder
	b.WriteString("digraph knative {\n  rankdir=LR\n  node [shape=box]\n")
	for _, n := range g.Nodes {
		label := n.URI
		if label == "" {
			label = n.Kind + "\n" + n.Namespace + "/" + n.Name
		}
		if n.Filter != "" {
			label += "\n" + n.Filter
		}
		fmt.Fprintf(&b, "  %s [label=%s color=%s]\n", dotString(n.ID), dotString(label), cmp.Or(dotColors[n.Ready], "gray"))
	}
	for _, edge := range g.Edges {
		style := map[string]string{AsReply: "dashed", AsDeadLetterSink: "dotted"}[edge.As]
		fmt.Fprintf(&b, "  %s -> %s [style=%s]\n", dotString(edge.From), dotString(edge.To), cmp.Or(style, "solid"))
	}
	b.WriteString("}\n")
	_, err := io.WriteString(to, b.String())
	return err
}

// dotString quotes a string: a backslash would begin an escape sequence of labels.
func dotString(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s) + `"`
}
