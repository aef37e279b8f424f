package eventing

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// series returns the number of series of metrics about events.
func series(t testing.TB, s *server) int {
	t.Helper()
	return len(regexp.MustCompile(`(?m)^knative_(eventing|broker|eventlog)_`).FindAll(scrape(t, s), -1))
}

// TestDistinctTypes checks that a hundred thousand event types do not grow memory or metrics.
func TestDistinctTypes(t *testing.T) {
	const types, batch, limit = 100_000, 500, 256 << 20
	s := start(t, t.TempDir())
	ns := namespace()
	subscriber := harness.NewSink(t).At("/")
	address := s.broker(t, ns, "orders")
	s.trigger(t, ns, "orders", "wanted", subscriber.URL, ofType("wanted"))
	post := func(first, count int) {
		events := make([]string, 0, count)
		for i := range count {
			events = append(events, fmt.Sprintf(`{"specversion":"1.0","id":"%[1]d","source":"/types","type":"type-%[1]d","ext%[1]d":"x"}`, first+i))
		}
		encoded("application/cloudevents-batch+json", "["+strings.Join(events, ",")+"]").mustSend(t, address)
	}
	post(0, batch)
	before, had := s.ResidentMemory(t), series(t, s)
	for first := batch; first < types; first += batch {
		post(first, batch)
	}
	after := s.ResidentMemory(t)
	t.Logf("memory grew from %d to %d MiB", before>>20, after>>20)
	if after-before > limit {
		t.Errorf("memory grew from %d to %d MiB, more than %d", before>>20, after>>20, limit>>20)
	}
	// A few counters, such as the one of dropped trace records, have no series before their first event.
	if has := series(t, s); has > had+10 {
		t.Errorf("got %d series of metrics of events, %d before", has, had)
	}
	mustPost(t, address, event{id: "last", kind: "wanted"})
	if err := subscriber.AwaitAll(bounded(t), []string{"last"}); err != nil {
		t.Error(err)
	}
}
