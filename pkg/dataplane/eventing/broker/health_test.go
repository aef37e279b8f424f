package broker

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// reported returns the times at which the health of a consumer was reported.
func (w *fixture) reported(key eventing.Key) (at []time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.reports {
		if r.key == key {
			at = append(at, r.at)
		}
	}
	return at
}

func (w *fixture) expectReports(key eventing.Key, want ...time.Duration) {
	w.Helper()
	if diff := cmp.Diff(want, w.reported(key)); diff != "" {
		w.Errorf("reports of %s: %s", key, diff)
	}
}

func (w *fixture) expectHealth(key eventing.Key, want eventing.Health) {
	w.Helper()
	if diff := cmp.Diff(want, w.Health(key)); diff != "" {
		w.Errorf("health of %s after %v: %s", key, time.Since(w.start), diff)
	}
}

// eventing Derived (Reply) Events: an event whose answer has a body that is not an event is delivered, and not
// dead-lettered; the health of the consumer reports it until an answer is valid.
func TestHealthOfReplies(t *testing.T) {
	run(t, func(w *fixture) {
		c := trigger("a", withDelivery(linear(3, time.Minute)), withDeadLetter)
		w.set(c)
		w.answer("a", func(int) (time.Duration, sender.Result) {
			return 0, sender.Result{Code: 200, ReplyErr: errors.New("POST http://a/: 200 OK, but the answer is not a CloudEvent")}
		})
		w.after(time.Second)
		w.accept(brokerKey, "1")
		w.after(0)
		w.expectReceived(map[string]string{"a": "1", "dead": ""})
		w.expectHealth(c.Key, eventing.Health{
			Failing: true, Since: w.start.Add(time.Second), LastError: "POST http://a/: 200 OK, but the answer is not a CloudEvent",
		})
		if n := w.count(c.Key); n.delivered.Load() != 1 || n.dropped.Load()+n.retried.Load()+n.deadLettered.Load() > 0 {
			t.Errorf("delivered %d, dropped %d, retried %d", n.delivered.Load(), n.dropped.Load(), n.retried.Load())
		}
		w.log.expectLeft(t, "b", nil)
		w.answer("a", nil)
		w.after(time.Minute)
		w.accept(brokerKey, "2")
		w.after(time.Minute)
		w.expectHealth(c.Key, eventing.Health{})
	})
}

// Deliveries are reported as failing after a few consecutive failures, or when one is dropped or dead-lettered, and as successful after one success.
func TestHealth(t *testing.T) {
	run(t, func(w *fixture) {
		c := trigger("a", withDelivery(linear(20, time.Minute)))
		w.set(c, trigger("fast"))
		w.expectHealth(c.Key, eventing.Health{})
		w.answer("a", failing(4, 500))
		w.after(time.Second)
		w.accept(brokerKey, "1")
		w.after(time.Minute)
		w.expectHealth(c.Key, eventing.Health{})
		w.expectReports(c.Key)
		w.after(time.Minute)
		w.expectHealth(c.Key, eventing.Health{Failing: true, Since: w.start.Add(time.Second), LastError: "POST http://x/: 500"})
		w.expectReports(c.Key, 121*time.Second)
		w.after(time.Minute)
		w.expectReports(c.Key, 121*time.Second)
		w.after(time.Minute)
		w.expectHealth(c.Key, eventing.Health{})
		w.expectReports(c.Key, 121*time.Second, 241*time.Second)
		w.expectReports(trigger("fast").Key)
		w.expectHealth(trigger("unknown").Key, eventing.Health{})
	})
}

// The rate of reports is limited, regardless of the rate of changes; the last report is the current state.
func TestHealthIsReportedSeldom(t *testing.T) {
	run(t, func(w *fixture) {
		c := trigger("a")
		w.set(c)
		for i := range 100 {
			w.answer("a", nil)
			if i%2 == 0 {
				w.answer("a", always(400))
			}
			for range failuresToFail {
				w.accept(brokerKey, "1")
				w.after(0)
			}
			w.after(700 * time.Millisecond)
		}
		w.after(time.Minute)
		reports := w.reported(c.Key)
		for i := 1; i < len(reports); i++ {
			if apart := reports[i] - reports[i-1]; apart < quietFor {
				t.Errorf("reports after %v and %v, want them %v apart", reports[i-1], reports[i], quietFor)
			}
		}
		if len(reports) < 2 {
			t.Errorf("%d reports, want some", len(reports))
		}
		if w.Health(c.Key).Failing {
			t.Error("deliveries are reported as failing after they succeeded")
		}
	})
}

// Failures and recoveries within the quiet time are not reported.
func TestHealthOfShortFailures(t *testing.T) {
	run(t, func(w *fixture) {
		c := trigger("a")
		w.set(c)
		attempts := func(n, code int) {
			w.answer("a", always(code))
			for range n {
				w.accept(brokerKey, "1")
				w.after(0)
			}
		}
		attempts(failuresToFail, 400)
		w.after(time.Minute)
		attempts(1, 202)
		w.after(time.Second)
		attempts(failuresToFail, 400)
		w.after(time.Second)
		attempts(1, 202)
		w.after(time.Minute)
		w.expectReports(c.Key, 0, time.Minute)
	})
}

func TestHealthWhenADeliveryIsGivenUp(t *testing.T) {
	run(t, func(w *fixture) {
		c := trigger("a", withDelivery(linear(1, time.Second)))
		w.set(c)
		w.answer("a", always(500))
		w.accept(brokerKey, "1")
		w.after(0)
		w.expectHealth(c.Key, eventing.Health{})
		w.after(time.Second)
		w.expectHealth(c.Key, eventing.Health{Failing: true, Since: w.start, LastError: "POST http://x/: 500"})
		w.expectReports(c.Key, time.Second)
	})
}
