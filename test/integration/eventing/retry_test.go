package eventing

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestRetryCounts checks that an event is retried as often as retry specifies and not before backoffDelay, by backoffPolicy; a
// success ends the retries, and so does the last attempt without a dead letter sink (eventing Event Delivery-1 to -4, -8 and
// -9; eventing Event Acknowledgement and Delivery Retry-7).
// It covers eventing DeliverySpec-3 to -5.
func TestRetryCounts(t *testing.T) {
	linear, exponential := duckv1.BackoffPolicyLinear, duckv1.BackoffPolicyExponential
	const delay = 100 * time.Millisecond
	for _, tt := range []struct {
		name     string
		retry    int32
		policy   duckv1.BackoffPolicyType
		failures int
		dead     bool
		// gaps are the minimum times between attempts.
		gaps []time.Duration
	}{
		{"none", 0, linear, 100, true, nil},
		{"one", 1, linear, 100, true, []time.Duration{delay}},
		{"linear", 4, linear, 100, true, []time.Duration{delay, delay, delay, delay}},
		{"exponential", 3, exponential, 100, true, []time.Duration{delay, 2 * delay, 4 * delay}},
		{"success at last", 2, linear, 2, true, []time.Duration{delay, delay}},
		{"success before", 10, exponential, 1, true, []time.Duration{delay}},
		{"no dead letter sink", 2, linear, 100, false, []time.Duration{delay, delay}},
	} {
		for _, consumer := range consumers {
			t.Run(tt.name+" of a "+consumer.name, func(t *testing.T) {
				t.Parallel()
				sink := harness.NewSink(t)
				subscriber, dead := sink.At("/"), sink.At("/dead")
				subscriber.Answer(func(d *harness.Delivery) harness.Answer {
					if d.ID == "1" && d.Attempt <= tt.failures {
						return harness.Answer{Code: http.StatusInternalServerError}
					}
					return harness.Answer{}
				})
				options := retries(tt.retry, "PT0.1S")
				options.BackoffPolicy = &tt.policy
				if tt.dead {
					deadTo(uri(dead.URL), options)
				}
				address := consumer.consume(t, namespace(), subscriber.URL, options)
				mustPost(t, address, event{id: "1", kind: "order"})
				attempts := len(tt.gaps) + 1
				if err := subscriber.AwaitAttempts(bounded(t), func(got map[string]int) error {
					if got["1"] < attempts {
						return fmt.Errorf("%d attempts, want %d", got["1"], attempts)
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				gaveUp := tt.failures >= attempts
				if gaveUp && tt.dead {
					if err := dead.AwaitAll(bounded(t), []string{"1"}); err != nil {
						t.Error(err)
					}
				}
				// Superfluous attempts would happen before the retries of a later event end.
				mustPost(t, address, event{id: "2", kind: "order"})
				if err := subscriber.AwaitAll(bounded(t), []string{"2"}); err != nil {
					t.Error(err)
				}
				var at []time.Time
				for _, d := range subscriber.Deliveries() {
					if d.ID == "1" {
						at = append(at, d.Arrived)
					}
				}
				if len(at) != attempts {
					t.Fatalf("%d attempts, want %d", len(at), attempts)
				}
				// The arrival is recorded by another process than the one that waits.
				const tolerance = 20 * time.Millisecond
				for i, least := range tt.gaps {
					if gap := at[i+1].Sub(at[i]); gap < least-tolerance {
						t.Errorf("attempt %d was made %s after the previous one, want at least %s", i+2, gap, least)
					}
				}
				wantDead := map[string]int{}
				if gaveUp && tt.dead {
					wantDead["1"] = 1
				}
				if diff := cmp.Diff(wantDead, dead.Attempts()); diff != "" {
					t.Errorf("dead letters (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// TestRetryAfter checks that an overloaded subscriber is retried after its Retry-After, at most retryAfterMax (eventing Event
// Acknowledgement and Delivery Retry-6 and -7; eventing DeliverySpec).
func TestRetryAfter(t *testing.T) {
	for _, tt := range []struct {
		name, after, most string
		least             time.Duration
	}{
		{"as asked", "1", "", time.Second},
		{"at most", "3600", "PT0.3S", 300 * time.Millisecond},
		{"ignored", "3600", "PT0S", 0},
	} {
		for _, code := range []int{http.StatusTooManyRequests, http.StatusServiceUnavailable} {
			t.Run(fmt.Sprintf("%d, %s", code, tt.name), func(t *testing.T) {
				t.Parallel()
				subscriber := harness.NewSink(t).At("/")
				subscriber.Answer(func(d *harness.Delivery) harness.Answer {
					if d.Attempt == 1 {
						return harness.Answer{Code: code, Header: http.Header{"Retry-After": {tt.after}}}
					}
					return harness.Answer{}
				})
				options := retries(1, "PT0.01S")
				if tt.most != "" {
					options.RetryAfterMax = &tt.most
				}
				address := consumers[0].consume(t, namespace(), subscriber.URL, options)
				mustPost(t, address, event{id: "1", kind: "order"})
				if err := subscriber.AwaitAll(bounded(t), []string{"1"}); err != nil {
					t.Fatal(err)
				}
				all := subscriber.Deliveries()
				if gap := all[len(all)-1].Arrived.Sub(all[0].Arrived); len(all) != 2 || gap < tt.least-20*time.Millisecond {
					t.Errorf("%d attempts, the last %s after the first, want 2 and at least %s", len(all), gap, tt.least)
				}
			})
		}
	}
}
