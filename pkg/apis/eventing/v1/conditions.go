package v1

import duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"

// Conditions of a Broker besides Ready and DeadLetterSinkResolved. Ready depends on them all.
const (
	// BrokerConditionIngressReady tells that the Broker accepts events.
	BrokerConditionIngressReady duckv1.ConditionType = "IngressReady"
	// BrokerConditionFilterReady tells that the events are matched with Triggers.
	BrokerConditionFilterReady duckv1.ConditionType = "FilterReady"
	// BrokerConditionAddressable tells that the Broker has an address.
	BrokerConditionAddressable duckv1.ConditionType = "Addressable"
	// BrokerConditionTriggerChannelReady tells that the Broker's events are kept until they are delivered.
	BrokerConditionTriggerChannelReady duckv1.ConditionType = "TriggerChannelReady"
)

// Conditions of a Trigger besides Ready and DeadLetterSinkResolved. Ready depends on them all.
const (
	// TriggerConditionBrokerReady tells that the Broker is there and ready.
	TriggerConditionBrokerReady duckv1.ConditionType = "BrokerReady"
	// TriggerConditionSubscriptionReady tells that the Broker's future events that match reach the subscriber.
	TriggerConditionSubscriptionReady duckv1.ConditionType = "SubscriptionReady"
	// TriggerConditionDependencyReady tells that the object is ready that an annotation has the Trigger wait for.
	TriggerConditionDependencyReady duckv1.ConditionType = "DependencyReady"
	// TriggerConditionSubscriberResolved tells that the subscriber has an address.
	TriggerConditionSubscriberResolved duckv1.ConditionType = "SubscriberResolved"
)
