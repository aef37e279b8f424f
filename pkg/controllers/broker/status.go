package broker

import (
	"fmt"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/destination"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/streams"
)

// ReasonStreamFailed means that the Broker's events cannot be kept.
const ReasonStreamFailed = "StreamFailed"

// ReasonForeignClass is the reason of Ready while the controller of another class has not written a status.
const ReasonForeignClass = "BrokerClassNotReported"

// dependents are the conditions that Ready depends on; the first one that fails determines the reason.
var dependents = []duckv1.ConditionType{
	eventingv1.BrokerConditionIngressReady,
	eventingv1.BrokerConditionFilterReady,
	eventingv1.BrokerConditionAddressable,
	eventingv1.BrokerConditionTriggerChannelReady,
	destination.ConditionDeadLetterSinkResolved,
	duckv1.ConditionEventPoliciesReady,
}

// serving are the conditions that follow from the Broker's addresses, and from whether its stream could be set.
func serving(broker *eventingv1.Broker, failed error) []duckv1.Condition {
	if failed == nil {
		return []duckv1.Condition{
			reconciler.True(eventingv1.BrokerConditionIngressReady),
			reconciler.True(eventingv1.BrokerConditionFilterReady),
			streams.Addressable(eventingv1.BrokerConditionAddressable, broker.Status.AddressStatus),
			reconciler.True(eventingv1.BrokerConditionTriggerChannelReady),
		}
	}
	message := fmt.Sprintf("The Broker's events cannot be kept: %v", failed)
	addressable := reconciler.True(eventingv1.BrokerConditionAddressable)
	if broker.Status.Address.GetURL() == "" {
		addressable = reconciler.Unknown(eventingv1.BrokerConditionAddressable, ReasonStreamFailed, message)
	}
	return []duckv1.Condition{
		reconciler.False(eventingv1.BrokerConditionIngressReady, ReasonStreamFailed, message),
		// Events that were accepted before are matched already.
		reconciler.Unknown(eventingv1.BrokerConditionFilterReady, ReasonStreamFailed, message),
		addressable,
		reconciler.False(eventingv1.BrokerConditionTriggerChannelReady, ReasonStreamFailed, message),
	}
}
