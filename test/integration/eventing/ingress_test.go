package eventing

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// entrance is an address that accepts events.
type entrance struct {
	name, address, host string
	// broker is true for the address of a Broker.
	broker bool
}

// entrances returns the address of a Broker and both addresses of a Channel.
func entrances(t *testing.T, broker, channel string) []entrance {
	t.Helper()
	u, err := url.Parse(channel)
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(strings.Trim(u.Path, "/"), "/")
	host := parts[len(parts)-1] + "-kn-channel." + parts[len(parts)-2] + ".svc.cluster.local"
	return []entrance{
		{name: "Broker", address: broker, broker: true},
		{name: "Channel by path", address: channel},
		{name: "Channel by host", address: shared.Broker + "/", host: host},
	}
}

// TestIngressCodes checks that the status code reports whether an event was accepted, and that a rejected event is not
// delivered (eventing Event Acknowledgement and Delivery Retry-1, -2 and -4; eventing Content Based Routing-2 and -13; eventing
// Topology Based Routing-2 and -8; eventing Broker Lifecycle-3, Channel Lifecycle-3; eventing Minimum supported protocol-1).
func TestIngressCodes(t *testing.T) {
	const event = `{"specversion":"1.0","id":"%s","source":"/test","type":"order","data":{"a":1}}`
	one := func(id string) string { return fmt.Sprintf(event, id) }
	large := func(size int) string { return strings.Repeat("x", size) }
	type row struct {
		name string
		message
		code int
		// accepted are the IDs of the delivered events.
		accepted []string
	}
	rows := []row{
		{"binary mode", binary("binary", "{}", nil), 202, []string{"binary"}},
		{"the same again", binary("binary", "{}", nil), 202, []string{"binary"}},
		{"without data", binary("empty", "", nil), 202, []string{"empty"}},
		{"1 MiB", binary("large", large(1<<20), nil), 202, []string{"large"}},
		{"all attributes", binary("all", "<a/>", map[string]string{"Content-Type": "application/xml", "Ce-Subject": "s", "Ce-Time": "2024-05-01T12:00:00Z",
			"Ce-Dataschema": "http://schema.example.com/", "Ce-Ext1": "1"}), 202, []string{"all"}},
		{"structured mode", encoded(structuredType, one("structured")), 202, []string{"structured"}},
		{"with a charset", encoded(structuredType+"; charset=UTF-8", one("charset")), 202, []string{"charset"}},
		{"batched mode", encoded(batchType, "["+one("batch-1")+","+one("batch-2")+"]"), 202, []string{"batch-1", "batch-2"}},
		{"empty batch", encoded(batchType, "[]"), 202, nil},

		{"no event", encoded("application/json", "{}"), 400, nil},
		{"nothing", message{}, 400, nil},
		{"no id", binary("", "{}", nil), 400, nil},
		{"no source", binary("bad", "{}", map[string]string{"Ce-Source": ""}), 400, nil},
		{"no type", binary("bad", "{}", map[string]string{"Ce-Type": ""}), 400, nil},
		{"another version", binary("bad", "{}", map[string]string{"Ce-Specversion": "0.2"}), 400, nil},
		{"invalid time", binary("bad", "{}", map[string]string{"Ce-Time": "yesterday"}), 400, nil},
		{"no JSON", encoded(structuredType, "{"), 400, nil},
		{"JSON without id", encoded(structuredType, `{"specversion":"1.0","source":"/test","type":"order"}`), 400, nil},
		{"empty body", encoded(structuredType, ""), 400, nil},
		{"a batch for an event", encoded(structuredType, "["+one("bad")+"]"), 400, nil},
		{"an event for a batch", encoded(batchType, one("bad")), 400, nil},
		{"invalid event in a batch", encoded(batchType, "["+one("bad")+`,{"id":"bad"}]`), 400, nil},

		{"1 byte too large", binary("bad", large(1<<20+1), nil), 413, nil},
		{"10 MiB", binary("bad", large(10<<20), nil), 413, nil},
		{"a large batch", encoded(batchType, "["+one("bad")+large(1<<20)+"]"), 413, nil},

		{"content coding", binary("bad", "{}", map[string]string{"Content-Encoding": "gzip"}), 415, nil},
		{"another format", encoded("application/cloudevents+avro", "{}"), 415, nil},
	}
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPut, http.MethodPatch, http.MethodDelete, "BREW"} {
		m := binary("bad", "", nil)
		m.method = method
		rows = append(rows, row{method, m, 405, nil})
	}
	ns := namespace()
	at := entrances(t, shared.broker(t, ns, "orders"), shared.channel(t, ns, "orders"))
	for i, e := range at {
		t.Run(e.name, func(t *testing.T) {
			subscriber := harness.NewSink(t).At("/")
			if e.broker {
				shared.trigger(t, ns, "orders", "orders", subscriber.URL)
			} else {
				shared.subscribe(t, newSubscription(ns, "orders", fmt.Sprintf("orders-%d", i), to(uri(subscriber.URL))))
			}
			want := map[string]int{}
			for _, row := range rows {
				row.host = e.host
				a := row.send(t, e.address)
				if a.code != row.code {
					t.Errorf("%s: %d %s, want %d", row.name, a.code, a.body, row.code)
				}
				if failed := a.code >= 400; failed != (a.body != "") && row.method != http.MethodHead {
					t.Errorf("%s: %d with the body %q", row.name, a.code, a.body)
				}
				if row.code == 405 && a.header.Get("Allow") != "POST, OPTIONS" {
					t.Errorf("%s: Allow is %q", row.name, a.header.Get("Allow"))
				}
				for _, id := range row.accepted {
					want[id]++
				}
			}
			if err := subscriber.AwaitAttempts(bounded(t), func(attempts map[string]int) error {
				if diff := cmp.Diff(want, attempts); diff != "" {
					return fmt.Errorf("deliveries (-want +got):\n%s", diff)
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestIngressOptions checks that the response to OPTIONS allows POST (eventing HTTP Verbs-3).
func TestIngressOptions(t *testing.T) {
	ns := namespace()
	for _, e := range entrances(t, shared.broker(t, ns, "orders"), shared.channel(t, ns, "orders")) {
		a := message{method: http.MethodOptions, host: e.host, header: map[string]string{"WebHook-Request-Origin": "sender.example.com"}}.send(t, e.address)
		if a.code != http.StatusOK || a.header.Get("Allow") != "POST, OPTIONS" || a.header.Get("WebHook-Allowed-Origin") != "sender.example.com" {
			t.Errorf("%s: OPTIONS got %d %v", e.name, a.code, a.header)
		}
	}
}

// TestIngressUnknown checks that an address without a Broker or Channel is not found (eventing Event Acknowledgement and
// Delivery Retry-1).
func TestIngressUnknown(t *testing.T) {
	ns := namespace()
	shared.broker(t, ns, "broker")
	shared.channel(t, ns, "channel")
	for _, tt := range []struct{ host, path string }{
		{"", "/"},
		{"", "/" + ns},
		{"", "/" + ns + "/"},
		{"", "/" + ns + "/unknown"},
		{"", "/" + ns + "/channel"},
		{"", "/" + ns + "/broker/orders"},
		{"", "/unknown/broker"},
		{"", "/channels/" + ns + "/broker"},
		{"", "/channels/" + ns + "/unknown"},
		{"broker-kn-channel." + ns + ".svc.cluster.local", "/"},
		{"channel-kn-channel.unknown.svc.cluster.local", "/"},
	} {
		m := binary("lost", "{}", nil)
		m.host = tt.host
		for _, method := range []string{http.MethodPost, http.MethodOptions} {
			m.method = method
			if a := m.send(t, shared.Broker+tt.path); a.code != http.StatusNotFound {
				t.Errorf("%s %q %s: %d %s, want 404", method, tt.host, tt.path, a.code, a.body)
			}
		}
	}
}

// TestIngressSlowSender checks that a sender that stops within an event is answered 408, and that nothing is accepted.
func TestIngressSlowSender(t *testing.T) {
	t.Parallel()
	ns := namespace()
	address, err := url.Parse(shared.broker(t, ns, "orders"))
	if err != nil {
		t.Fatal(err)
	}
	connection, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	if _, err := fmt.Fprintf(connection, "POST %s HTTP/1.1\r\nHost: %s\r\nCe-Specversion: 1.0\r\nCe-Id: 1\r\nCe-Type: order\r\nCe-Source: /test\r\n"+
		"Content-Length: 100\r\n\r\n{", address.Path, address.Host); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(connection), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); response.StatusCode != http.StatusRequestTimeout {
		t.Errorf("%d %s %v, want 408", response.StatusCode, body, err)
	}
}
