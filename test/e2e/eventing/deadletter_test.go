package eventing

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestDeadLetters checks that an event that cannot be delivered reaches the dead letter sink unchanged after its retries, with
// extensions for the destination and the reason (eventing Event Delivery, eventing DeliverySpec). The response is only
// disclosed for Services of the namespace.
func TestDeadLetters(t *testing.T) {
	t.Parallel()
	s := newSpace(t, "dead")
	sink := newSink(t)
	const reason = "no room left"
	full := sink.At("/full")
	full.Answer(func(*harness.Delivery) harness.Answer {
		return harness.Answer{Code: http.StatusServiceUnavailable, Body: reason}
	})
	lost := "http://" + s.Host("missing")
	dead := func(path string) string {
		return "delivery: {retry: 2, backoffDelay: PT0.1S, deadLetterSink: " + uri(sink.At(path).URL) + "}"
	}
	s.Apply(t,
		broker("default", dead("/broker")), channel("orders"), s.Application(t, "refusing", nil),
		trigger("full", "full", uri(full.URL), ""),
		trigger("lost", "lost", uri(lost), dead("/trigger")),
		trigger("refused", "refused", `{ref: {apiVersion: v1, kind: Service, name: refusing}, uri: "/orders?code=400&body=no+order"}`, ""),
		subscription("full", "orders", uri(full.URL), dead("/subscription")))
	s.Ready(t, "pod/refusing", "trigger/full", "trigger/lost", "trigger/refused", "subscription/full")
	client := s.Client(t, "client")
	// Its Pod may be ready before the node routes the address of its Service.
	until(t, "the refusing Service answers", func() error {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.Host("refusing")+"/", nil)
		if err != nil {
			return err
		}
		code, _, err := harness.Exchange(client, request)
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("code %d", code)
		}
		return err
	})
	for _, kind := range []string{"full", "lost", "refused"} {
		post(t, client, s.Address(t, "broker/default"), kind, kind)
	}
	post(t, client, s.Address(t, "channel/orders"), "channel", "order")

	for _, test := range []struct {
		id, path, destination, code, data string
	}{
		{"full", "/broker", full.URL, "503", ""},
		{"lost", "/trigger", lost, "", ""},
		{"refused", "/broker", "http://" + s.Host("refusing") + "/orders?code=400&body=no+order", "400", "no order"},
		{"channel", "/subscription", full.URL, "503", ""},
	} {
		t.Run(test.id, func(t *testing.T) {
			subscriber := sink.At(test.path)
			if err := subscriber.AwaitAll(bounded(t), []string{test.id}); err != nil {
				t.Fatal(err)
			}
			for _, d := range subscriber.Deliveries() {
				if d.ID != test.id {
					continue
				}
				data, err := base64.StdEncoding.DecodeString(d.Header.Get("Ce-Knativeerrordata"))
				if err != nil {
					t.Error(err)
				}
				got := []string{d.Header.Get("Ce-Knativeerrordest"), d.Header.Get("Ce-Knativeerrorcode"), string(d.Body)}
				if diff := cmp.Diff([]string{test.destination, test.code, `{"order": "` + test.id + `"}`}, got); diff != "" {
					t.Errorf("destination, code and body (-want +got):\n%s", diff)
				}
				if test.code != "" && string(data) != test.data || test.code == "" && len(data) == 0 {
					t.Errorf("knativeerrordata is %q", data)
				}
			}
		})
	}
	for id, attempts := range full.Attempts() {
		if attempts != 3 {
			t.Errorf("event %s was sent %d times, want once and 2 retries", id, attempts)
		}
	}
}
