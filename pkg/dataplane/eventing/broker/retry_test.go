package broker

import (
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

func linear(retries int, delay time.Duration) eventing.Delivery {
	return eventing.Delivery{Retry: retries, Policy: eventing.BackoffLinear, Backoff: delay}
}

// eventing Event Delivery-3, eventing Event Acknowledgement and Delivery Retry-7: a delivery that fails with a
// retryable error is retried up to retry times, following backoffPolicy and backoffDelay.
func TestRetries(t *testing.T) {
	const ms = time.Millisecond
	exponential := func(retries int, most time.Duration) eventing.Delivery {
		return eventing.Delivery{Retry: retries, Policy: eventing.BackoffExponential, Backoff: 200 * ms, MaxBackoff: most}
	}
	for name, test := range map[string]struct {
		delivery eventing.Delivery
		answer   answer
		want     []time.Duration
		dropped  int64
	}{
		"none":                         {linear(0, time.Second), always(500), []time.Duration{0}, 1},
		"linear":                       {linear(3, time.Second), always(500), []time.Duration{0, time.Second, 2 * time.Second, 3 * time.Second}, 1},
		"linear without delay":         {linear(2, 0), always(500), []time.Duration{0, 0, 0}, 1},
		"linear over hours":            {linear(1, 5*time.Hour), always(500), []time.Duration{0, 5 * time.Hour}, 1},
		"exponential":                  {exponential(4, 0), always(500), []time.Duration{0, 200 * ms, 600 * ms, 1400 * ms, 3000 * ms}, 1},
		"exponential, bounded":         {exponential(4, 500*ms), always(500), []time.Duration{0, 200 * ms, 600 * ms, 1100 * ms, 1600 * ms}, 1},
		"no answer":                    {linear(2, time.Second), unreachable, []time.Duration{0, time.Second, 2 * time.Second}, 1},
		"not found":                    {linear(1, time.Second), always(404), []time.Duration{0, time.Second}, 1},
		"success at last":              {linear(2, time.Second), failing(2, 500), []time.Duration{0, time.Second, 2 * time.Second}, 0},
		"success":                      {linear(2, time.Second), nil, []time.Duration{0}, 0},
		"no retry of permanent errors": {linear(5, time.Second), always(400), []time.Duration{0}, 1},
		"no retry of redirects":        {linear(5, time.Second), always(301), []time.Duration{0}, 1},
		"no retry of interim answers":  {linear(5, time.Second), always(102), []time.Duration{0}, 1},
	} {
		for order, how := range map[string]func(*eventing.Consumer){"unordered": func(*eventing.Consumer) {}, "ordered": ordered} {
			t.Run(name+", "+order, func(t *testing.T) {
				run(t, func(w *fixture) {
					c := trigger("a", withDelivery(test.delivery), how)
					w.set(c)
					w.answer("a", test.answer)
					w.accept(brokerKey, "1")
					w.after(24 * time.Hour)
					w.expectTimes("a", test.want...)
					w.log.expectLeft(t, "b", nil)
					n := w.count(c.Key)
					if retried := n.retried.Load(); retried != int64(len(test.want)-1) {
						t.Errorf("%d attempts were retried, want %d", retried, len(test.want)-1)
					}
					if dropped, delivered := n.dropped.Load(), n.delivered.Load(); dropped != test.dropped || delivered != 1-test.dropped {
						t.Errorf("%d events were dropped and %d delivered, want %d and %d", dropped, delivered, test.dropped, 1-test.dropped)
					}
				})
			})
		}
	}
}

// eventing Event Acknowledgement and Delivery Retry-7: retries wait as long as Retry-After requests.
func TestRetryAfter(t *testing.T) {
	asking := func(code int, after time.Duration) answer {
		return func(n int) (time.Duration, sender.Result) {
			if n > 1 {
				return 0, status(202)
			}
			r := status(code)
			r.RetryAfter = &after
			return 0, r
		}
	}
	for name, test := range map[string]struct {
		answer answer
		most   *time.Duration
		want   time.Duration
	}{
		"longer than the backoff":     {asking(429, 10*time.Second), nil, 10 * time.Second},
		"shorter than the backoff":    {asking(429, time.Second), nil, 2 * time.Second},
		"unavailable":                 {asking(503, 10*time.Second), nil, 10 * time.Second},
		"very long":                   {asking(503, 10*time.Hour), nil, 10 * time.Hour},
		"bounded":                     {asking(503, 10*time.Hour), ptr.To(5 * time.Second), 5 * time.Second},
		"below the bound":             {asking(503, 4*time.Second), ptr.To(5 * time.Second), 4 * time.Second},
		"ignored":                     {asking(429, 10*time.Second), ptr.To(time.Duration(0)), 2 * time.Second},
		"ignored with another status": {asking(500, 10*time.Second), nil, 2 * time.Second},
	} {
		for order, how := range map[string]func(*eventing.Consumer){"unordered": func(*eventing.Consumer) {}, "ordered": ordered} {
			t.Run(name+", "+order, func(t *testing.T) {
				run(t, func(w *fixture) {
					d := linear(1, 2*time.Second)
					d.RetryAfterMax = test.most
					w.set(trigger("a", withDelivery(d), how))
					w.answer("a", test.answer)
					w.accept(brokerKey, "1")
					w.after(24 * time.Hour)
					w.expectTimes("a", 0, test.want)
					w.log.expectLeft(t, "b", nil)
				})
			})
		}
	}
}

// Attempts are made with the options of the consumer (eventing DeliverySpec), and request replies only if these
// are processed (eventing Derived (Reply) Events-1 and -4).
func TestAttemptOptions(t *testing.T) {
	run(t, func(w *fixture) {
		d := eventing.Delivery{Timeout: 7 * time.Second, Format: eventing.FormatJSON}
		c := subscription("a", withDelivery(d), withReply, withDeadLetter)
		w.set(c)
		w.answer("a", replying(newEvent("r")))
		w.answer("reply", always(400))
		w.accept(channelKey, "1")
		w.after(0)
		for name, replies := range map[string]bool{"a": true, "reply": false, "dead": false} {
			want := sender.Attempt{Timeout: d.Timeout, Format: d.Format, ExpectReply: replies, Namespace: "default", Consumer: c.Key}
			if have := w.attempts(name); len(have) != 1 || have[0].options != want {
				t.Errorf("attempts at %s: %+v, want one with %+v", name, have, want)
			}
		}
	})
}
