package v1

import duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"

// Conditions of a Broker in addition to Ready and DeadLetterSinkResolved. Ready depends on all of them.
const (
	// BrokerConditionIngressReady reports whether the Broker accepts events.
	BrokerConditionIngressReady duckv1.ConditionType = "IngressReady"
	// BrokerConditionFilterReady reports whether events are matched with Triggers.
	BrokerConditionFilterReady duckv1.ConditionType = "FilterReady"
	// BrokerConditionAddressable reports whether the Broker has an address.
	BrokerConditionAddressable duckv1.ConditionType = "Addressable"
	// BrokerConditionTriggerChannelReady reports whether the Broker's events are persisted until they are delivered.
	BrokerConditionTriggerChannelReady duckv1.ConditionType = "TriggerChannelReady"
)

// Conditions of a Trigger in addition to Ready and DeadLetterSinkResolved. Ready depends on all of them.
const (
	// TriggerConditionBrokerReady reports whether the Broker exists and is ready.
	TriggerConditionBrokerReady duckv1.ConditionType = "BrokerReady"
	// TriggerConditionSubscriptionReady reports whether new matching events of the Broker reach the subscriber.
	TriggerConditionSubscriptionReady duckv1.ConditionType = "SubscriptionReady"
	// TriggerConditionDependencyReady reports whether the object that the dependency annotation refers to is ready.
	TriggerConditionDependencyReady duckv1.ConditionType = "DependencyReady"
	// TriggerConditionSubscriberResolved reports whether the subscriber has an address.
	TriggerConditionSubscriberResolved duckv1.ConditionType = "SubscriberResolved"
)
