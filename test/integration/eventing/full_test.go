package eventing

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestFullLog checks that a log that reached its limits rejects events, and is emptied when the subscriber is up again,
// without a restart and without free space (eventing Content Based Routing-3).
func TestFullLog(t *testing.T) {
	for name, args := range map[string][]string{
		"of one stream": {"--event-log-max-stream-size=4Mi"},
		"of all":        {"--event-log-max-size=4Mi", "--event-log-max-stream-size=4Mi"},
		"of both":       {"--event-log-max-size=20Mi", "--event-log-max-stream-size=8Mi"},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOutage(t, t.TempDir(), args...)
			for range 5000 {
				if o.post(t).code == http.StatusServiceUnavailable {
					break
				}
			}
			o.refused(t)
			o.sink.Start(t)
			if err := o.subscriber.AwaitAll(bounded(t), o.acknowledged); err != nil {
				t.Errorf("acknowledged events are lost: %v", err)
			}
			harness.Eventually(t, "events are accepted", func() error {
				if a := o.post(t); a.code != http.StatusAccepted {
					return fmt.Errorf("an event got %d %s", a.code, a.body)
				}
				return nil
			})
		})
	}
}

// TestFullShareOfANamespace checks that the Brokers of one namespace fill only half of the log, without effect on other
// namespaces, and that the log accepts its events again once its accepted events are delivered (eventing Content Based
// Routing-3).
func TestFullShareOfANamespace(t *testing.T) {
	o := newOutage(t, t.TempDir(), "--event-log-max-size=16Mi")
	for _, name := range []string{"second", "third", "fourth"} {
		for o.post(t).code == http.StatusAccepted {
			continue
		}
		o.address = o.broker(t, o.namespace, name)
		o.trigger(t, o.namespace, name, name, o.subscriber.URL, delivered(retries(1000, "PT0.5S")))
	}
	harness.Eventually(t, "the share of the namespace is used up", func() error {
		if a := o.post(t); a.code != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" || !strings.Contains(a.body, "of the namespace reached their share") {
			return fmt.Errorf("an event got %d with Retry-After %q: %s", a.code, a.header.Get("Retry-After"), a.body)
		}
		return nil
	})
	other := o.broker(t, namespace(), "orders")
	mustPost(t, other, numbered("other", "order", 10)...)
	o.sink.Start(t)
	if err := o.subscriber.AwaitAll(bounded(t), o.acknowledged); err != nil {
		t.Errorf("acknowledged events are lost: %v", err)
	}
	harness.Eventually(t, "the namespace can send events again", func() error {
		if a := o.post(t); a.code != http.StatusAccepted {
			return fmt.Errorf("an event got %d %s", a.code, a.body)
		}
		return nil
	})
}
