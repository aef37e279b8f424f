package app

import (
	"testing"

	"github.com/knative-apiserver/knative-apiserver/pkg/apiserver"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// Within a cluster, a Broker is a path of one host, and a Channel has its own host (eventing Broker Lifecycle,
// eventing Channel Lifecycle), under the domain of the cluster.
func TestClusterAddress(t *testing.T) {
	a := &aggregated{AggregatedConfig: AggregatedConfig{API: completedOptions("kn"), ClusterDomain: "corp.example"}}
	for kind, want := range map[eventing.Kind]string{
		eventing.Broker:  "http://broker-ingress.kn.svc.corp.example/shop/orders",
		eventing.Channel: "http://orders-kn-channel.shop.svc.corp.example",
	} {
		if got := a.plainURL(eventing.Key{Kind: kind, Namespace: "shop", Name: "orders"}); got != want {
			t.Errorf("the %s is at %q, want %q", kind, got, want)
		}
	}
}

// completedOptions returns the options of an API server in a namespace.
func completedOptions(namespace string) apiserver.CompletedOptions {
	o := apiserver.NewOptions()
	o.SystemNamespace = namespace
	return o.Complete()
}
