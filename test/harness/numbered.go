package harness

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// Numbered is a subscriber of many events, whose IDs are the numbers from 0. It keeps only which of them it has received.
type Numbered struct {
	seen              []atomic.Bool
	distinct, repeats atomic.Int64
}

// NewNumbered returns a subscriber of the events that the environment variable says, or of count events.
func NewNumbered(t testing.TB, variable string, count int) *Numbered {
	t.Helper()
	if value := os.Getenv(variable); value != "" {
		var err error
		if count, err = strconv.Atoi(value); err != nil {
			t.Fatalf("%s: %v", variable, err)
		}
	}
	return &Numbered{seen: make([]atomic.Bool, count)}
}

// Count returns the number of events.
func (n *Numbered) Count() int { return len(n.seen) }

// Repeats returns the number of deliveries of events that had been received before.
func (n *Numbered) Repeats() int { return int(n.repeats.Load()) }

// Send sends all events to an address, in batches.
func (n *Numbered) Send(t testing.TB, client *http.Client, url string) {
	t.Helper()
	const batch, concurrent = 500, 4
	var sending errgroup.Group
	sending.SetLimit(concurrent)
	for first := 0; first < n.Count(); first += batch {
		sending.Go(func() error {
			events := make([]string, 0, batch)
			for i := first; i < min(first+batch, n.Count()); i++ {
				events = append(events, fmt.Sprintf(`{"specversion":"1.0","id":"%d","source":"/many","type":"order"}`, i))
			}
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader("["+strings.Join(events, ",")+"]"))
			if err != nil {
				return err
			}
			request.Header.Set("Content-Type", "application/cloudevents-batch+json")
			code, body, err := Exchange(client, request)
			if err == nil && code != http.StatusAccepted {
				err = fmt.Errorf("%d %s", code, body)
			}
			return err
		})
	}
	if err := sending.Wait(); err != nil {
		t.Fatal(err)
	}
}

// ServeHTTP implements http.Handler. It accepts events in structured mode, which events of a batch are delivered in.
func (n *Numbered) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var e struct {
		ID int `json:"id,string"`
	}
	err := json.NewDecoder(r.Body).Decode(&e)
	switch id := e.ID; {
	case err != nil || id < 0 || id >= len(n.seen):
		http.Error(w, "no event with a number", http.StatusBadRequest)
	case n.seen[id].Swap(true):
		n.repeats.Add(1)
	default:
		n.distinct.Add(1)
	}
}

// Await waits until so many events have arrived. It fails the test if none arrives for some time.
func (n *Numbered) Await(t testing.TB, want int, limit time.Duration) {
	t.Helper()
	last, since := -1, time.Now()
	for {
		switch got := int(n.distinct.Load()); {
		case got >= want:
			return
		case got > last:
			last, since = got, time.Now()
		case time.Since(since) > limit:
			t.Fatalf("%d of %d events have arrived, and none for %s", got, want, limit)
		}
		<-time.After(10 * time.Millisecond)
	}
}
