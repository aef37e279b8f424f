package v1

import duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"

// Conditions of a Channel in addition to Ready and DeadLetterSinkResolved. Ready depends on all of them.
const (
	// ChannelConditionBackingChannelReady reports whether the Channel's events are persisted.
	ChannelConditionBackingChannelReady duckv1.ConditionType = "BackingChannelReady"
	// ChannelConditionAddressable reports whether the Channel has an address that accepts events.
	ChannelConditionAddressable duckv1.ConditionType = "Addressable"
)

// Conditions of a Subscription in addition to Ready. Ready depends on all of them.
const (
	// SubscriptionConditionReferencesResolved reports whether subscriber, reply and dead letter sink have addresses.
	SubscriptionConditionReferencesResolved duckv1.ConditionType = "ReferencesResolved"
	// SubscriptionConditionAddedToChannel reports whether new events of the channel reach the Subscription.
	SubscriptionConditionAddedToChannel duckv1.ConditionType = "AddedToChannel"
	// SubscriptionConditionChannelReady reports whether the channel exists and is ready.
	SubscriptionConditionChannelReady duckv1.ConditionType = "ChannelReady"
)
