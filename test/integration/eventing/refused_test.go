package eventing

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestRefusedDestinations checks that no event is sent to a denied address, by any name: the dead letter sink receives it, with
// the same error for all denied addresses (eventing Event Delivery-8).
func TestRefusedDestinations(t *testing.T) {
	ns := namespace()
	// Servers on an address that the operator denies, and on all addresses.
	denied, allAddresses := harness.NewSink(t), harness.NewSinkOn(t, "0.0.0.0")
	dead := harness.NewSinkOn(t, "127.0.0.2").At("/")
	s := start(t, t.TempDir(), "--deny-destination=127.0.0.1/32, ::1/128", "--allow-destination=169.254.10.10")
	address := s.broker(t, ns, "orders")
	port := func(sink *harness.Sink) string {
		at := sink.At("/").URL
		return strings.Trim(at[strings.LastIndexByte(at, ':'):], "/")
	}
	hosts := map[string]string{
		"address":     "127.0.0.1" + port(denied),
		"name":        "localhost" + port(denied),
		"subdomain":   "admin." + ns + ".localhost" + port(denied),
		"mapped":      "[::ffff:127.0.0.1]" + port(denied),
		"closed":      "127.0.0.1:1",
		"unspecified": "0.0.0.0" + port(allAddresses),
		"ipv6":        "[::]" + port(allAddresses),
		"metadata":    "169.254.169.254",
		"multicast":   "224.0.0.1",
	}
	for name, host := range hosts {
		s.trigger(t, ns, "orders", name, "http://"+host+"/", ofType(name), delivered(deadTo(uri(dead.URL), retries(0, "PT0.01S"))))
		binary(name, "{}", map[string]string{"Ce-Type": name}).mustSend(t, address)
	}
	for name, host := range hosts {
		e := read(t, deliveryOf(t, dead, name))
		said, err := base64.StdEncoding.DecodeString(e.attributes["knativeerrordata"])
		want := "POST http://" + host + "/: the address is not allowed as a destination (see --allow-destination and --deny-destination)"
		if err != nil || string(said) != want || e.attributes["knativeerrorcode"] != "" {
			t.Errorf("%s: code %q, %q, %v, want %q", name, e.attributes["knativeerrorcode"], said, err, want)
		}
	}
	for _, sink := range []*harness.Sink{denied, allAddresses} {
		if n := sink.At("/").Requests(); n > 0 {
			t.Errorf("%d requests arrived at a refused address", n)
		}
	}
}

// TestUndisclosedResponses checks that the dead letter discloses only the status of a response from a host other than the
// Services of the namespace.
func TestUndisclosedResponses(t *testing.T) {
	ns := namespace()
	const secret = "internal-data-not-for-tenants"
	internal, dead := harness.NewSink(t).At("/admin"), harness.NewSink(t).At("/")
	internal.Answer(func(*harness.Delivery) harness.Answer {
		return harness.Answer{Code: http.StatusForbidden, Body: secret}
	})
	address := shared.broker(t, ns, "orders")
	hosts := map[string]string{"address": "127.0.0.1", "localhost": "localhost", "other": "internal." + ns + "-other.localhost", "own": "internal." + ns + ".localhost"}
	for name, host := range hosts {
		shared.trigger(t, ns, "orders", name, strings.Replace(internal.URL, "127.0.0.1", host, 1), ofType(name),
			delivered(deadTo(uri(dead.URL), retries(0, "PT0.01S"))))
		binary(name, "{}", map[string]string{"Ce-Type": name}).mustSend(t, address)
	}
	for name := range hosts {
		e := read(t, deliveryOf(t, dead, name))
		said, err := base64.StdEncoding.DecodeString(e.attributes["knativeerrordata"])
		if err != nil || strings.Contains(fmt.Sprint(e), secret) || strings.Contains(string(said), secret) != (name == "own") || e.attributes["knativeerrorcode"] != "403" {
			t.Errorf("%s: the dead letter is %+v with the data %q, %v", name, e, said, err)
		}
	}
}
