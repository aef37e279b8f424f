package app

import (
	"reflect"
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// TestAddresses covers the addresses of Brokers and Channels, and the listeners that accept their events, for each value of
// transport-encryption.
func TestAddresses(t *testing.T) {
	const disabled, permissive, strict = settings.TransportDisabled, settings.TransportPermissive, settings.TransportStrict
	channel := eventing.Key{Kind: eventing.Channel, Namespace: "shop", Name: "orders"}
	plain := duckv1.Addressable{Name: ptr.To("http"), URL: "http://orders-kn-channel.shop.svc.corp.example"}
	secure := duckv1.Addressable{Name: ptr.To("https"), URL: "https://broker-ingress.kn.svc.corp.example/channels/shop/orders", CACerts: ptr.To("authorities")}
	cluster := &aggregated{AggregatedConfig: AggregatedConfig{API: completedOptions("kn"), ClusterDomain: "corp.example"}}
	listener := &secureIngress{host: cluster.serviceName(ingressService), authority: func() []byte { return []byte("authorities") }}
	for name, test := range map[string]struct {
		mode        settings.TransportEncryption
		secure      *secureIngress
		want        duckv1.AddressStatus
		http, https bool
		// unserved is part of the reason why the mode cannot be met.
		unserved string
	}{
		"disabled":   {mode: disabled, secure: listener, want: duckv1.AddressStatus{Address: &plain}, http: true},
		"permissive": {mode: permissive, secure: listener, want: duckv1.AddressStatus{Address: &plain, Addresses: []duckv1.Addressable{secure, plain}}, http: true, https: true},
		"strict":     {mode: strict, secure: listener, want: duckv1.AddressStatus{Address: &secure, Addresses: []duckv1.Addressable{secure}}, https: true},

		"disabled without HTTPS":   {mode: disabled, want: duckv1.AddressStatus{Address: &plain}, http: true},
		"permissive without HTTPS": {mode: permissive, want: duckv1.AddressStatus{Address: &plain}, http: true, unserved: "'transport-encryption' has no effect"},
		"strict without HTTPS":     {mode: strict, unserved: "accept no events", https: true},
	} {
		authenticated := false
		a := &addresses{
			plain: cluster.plainURL, encryption: func() settings.TransportEncryption { return test.mode }, secure: test.secure,
			authenticated: func() bool { return authenticated },
		}
		if got := a.of(channel); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: the addresses are %+v, want %+v", name, got, test.want)
		}
		if http, https := a.serves(false), a.serves(true); http != test.http || https != test.https {
			t.Errorf("%s: http is served: %v, https: %v; want %v and %v", name, http, https, test.http, test.https)
		}
		if got := a.unserved(); (got == "") != (test.unserved == "") || !strings.Contains(got, test.unserved) {
			t.Errorf("%s: unserved is %q, want %q", name, got, test.unserved)
		}
		authenticated = true
		got := a.of(channel)
		if got.Address != nil {
			got.Addresses = append(got.Addresses, *got.Address)
		}
		for _, address := range got.Addresses {
			if audience := ptr.Deref(address.Audience, ""); audience != "messaging.knative.dev/channel/shop/orders" {
				t.Errorf("%s: the audience of %s is %q", name, address.URL, audience)
			}
		}
	}
	broker := eventing.Key{Kind: eventing.Broker, Namespace: "shop", Name: "orders"}
	if got := listener.url(broker); got != "https://broker-ingress.kn.svc.corp.example/shop/orders" {
		t.Errorf("the Broker is at %q", got)
	}
}
