package eventing

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// A log that is full by its own limits refuses events, and empties when the subscriber is back, without a restart and
// without room for anything but what is in it (eventing Content Based Routing-3).
func TestFullLog(t *testing.T) {
	for name, args := range map[string][]string{
		"of one stream": {"--event-log-max-stream-size=4Mi"},
		"of all":        {"--event-log-max-size=4Mi"},
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
