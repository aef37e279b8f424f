package v1

import duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"

// Conditions of a Channel besides Ready and DeadLetterSinkResolved. Ready depends on them all.
const (
	// ChannelConditionBackingChannelReady tells that the Channel's events are kept.
	ChannelConditionBackingChannelReady duckv1.ConditionType = "BackingChannelReady"
	// ChannelConditionAddressable tells that the Channel has an address that accepts events.
	ChannelConditionAddressable duckv1.ConditionType = "Addressable"
)

// Conditions of a Subscription besides Ready. Ready depends on them all.
const (
	// SubscriptionConditionReferencesResolved tells that subscriber, reply and dead letter sink have addresses.
	SubscriptionConditionReferencesResolved duckv1.ConditionType = "ReferencesResolved"
	// SubscriptionConditionAddedToChannel tells that the channel's future events reach the Subscription.
	SubscriptionConditionAddedToChannel duckv1.ConditionType = "AddedToChannel"
	// SubscriptionConditionChannelReady tells that the channel is there and ready.
	SubscriptionConditionChannelReady duckv1.ConditionType = "ChannelReady"
)
