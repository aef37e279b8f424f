package eventing

import "testing"

func TestAudience(t *testing.T) {
	for key, want := range map[Key]string{
		{Kind: Broker, Namespace: "shop", Name: "orders"}:  "eventing.knative.dev/broker/shop/orders",
		{Kind: Channel, Namespace: "shop", Name: "orders"}: "messaging.knative.dev/channel/shop/orders",
		{Kind: Broker, Namespace: "Shop", Name: "Orders"}:  "eventing.knative.dev/broker/shop/orders",
	} {
		if got := Audience(key); got != want {
			t.Errorf("the audience of %s is %s, want %s", key, got, want)
		}
	}
}
