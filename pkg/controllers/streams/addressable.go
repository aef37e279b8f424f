package streams

import (
	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
)

// ReasonHTTPSNotServed means that a Broker or Channel has no address, because events must be sent by HTTPS, which the server does not serve.
const ReasonHTTPSNotServed = "HTTPSNotServed"

// Addressable returns the condition of a Broker or Channel with the given addresses, which are none if no scheme is served.
func Addressable(t duckv1.ConditionType, addresses duckv1.AddressStatus) duckv1.Condition {
	if addresses.Address == nil {
		return reconciler.False(t, ReasonHTTPSNotServed,
			"transport-encryption of config-features is strict, but the server does not serve HTTPS for events: none are accepted.")
	}
	return reconciler.True(t)
}
