// Package streams maps objects of Eventing to values of the data plane: Brokers and Channels to streams, delivery options to parsed
// ones.
package streams

import (
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/pkg/origin"
)

// BrokerKey returns the key of a Broker's stream.
func BrokerKey(broker types.NamespacedName) eventing.Key {
	return eventing.Key{Kind: eventing.Broker, Namespace: broker.Namespace, Name: broker.Name}
}

// byBroker is the name of the index of Triggers by the namespace/name of their Broker.
const byBroker = "trigger-broker"

// IndexByBroker makes TriggersOf work on an informer of Triggers. Call it before the informer starts.
func IndexByBroker(triggers cache.SharedIndexInformer) error {
	return reconciler.AddIndex(triggers, byBroker, func(obj any) ([]string, error) {
		if trigger, ok := obj.(*eventingv1.Trigger); ok {
			return []string{trigger.BrokerName().String()}, nil
		}
		return nil, nil
	})
}

// TriggersOf lists the Triggers of a Broker, in no particular order.
func TriggersOf(triggers cache.Indexer, broker types.NamespacedName) ([]*eventingv1.Trigger, error) {
	return reconciler.Indexed[*eventingv1.Trigger](triggers, byBroker, broker.String())
}

// OfBroker returns the stream of a Broker, and false if another controller serves its class. It ignores spec.config, which
// configures the archive only.
func OfBroker(broker *eventingv1.Broker) (eventing.Stream, bool) {
	if broker.IsForeign() {
		return eventing.Stream{}, false
	}
	stream := eventing.Stream{Key: BrokerKey(types.NamespacedName{Namespace: broker.Namespace, Name: broker.Name}), UID: origin.UID(broker.UID)}
	if n := broker.Partitions(); n > 1 {
		stream.Partitions = n
	}
	return stream, true
}

// OfChannel returns the stream of a Channel, and false if its template asks for a kind that another controller serves.
func OfChannel(channel *messagingv1.Channel) (eventing.Stream, bool) {
	stream := eventing.Stream{Key: ChannelKey(types.NamespacedName{Namespace: channel.Namespace, Name: channel.Name}), UID: origin.UID(channel.UID)}
	template := channel.Spec.ChannelTemplate
	stream.Memory = template.Own() && template.Kind == messagingv1.ChannelKindInMemory
	return stream, template.Own()
}

// ChannelKey returns the key of a Channel's stream.
func ChannelKey(channel types.NamespacedName) eventing.Key {
	return eventing.Key{Kind: eventing.Channel, Namespace: channel.Namespace, Name: channel.Name}
}
