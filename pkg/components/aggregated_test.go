package components

import (
	"testing"

	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// Within a cluster, a Broker is a path of one host, a Channel a host of its own (eventing Broker Lifecycle, eventing
// Channel Lifecycle).
func TestClusterAddress(t *testing.T) {
	a := &Aggregated{options: AggregatedOptions{SystemNamespace: "kn"}}
	for kind, want := range map[eventing.Kind]string{
		eventing.Broker:  "http://broker-ingress.kn.svc.cluster.local/shop/orders",
		eventing.Channel: "http://orders-kn-channel.shop.svc.cluster.local",
	} {
		if got := a.address(eventing.Key{Kind: kind, Namespace: "shop", Name: "orders"}); got.URL != want {
			t.Errorf("the %s is at %q, want %q", kind, got.URL, want)
		}
	}
}
