package pool

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

// describing is a Waiter with a description.
type describing struct {
	waiter
	request  string
	received time.Time
}

func (d describing) Describe() (string, time.Time) { return d.request, d.received }

// TestColdStarts checks that the cold start that a request begins is reported at each step, and that requests which wait with it or find
// a backend report nothing.
func TestColdStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPools()
		r := revision(0)
		r.UID = "uid"
		s.SetRevision(r)
		p := poolOf(s)
		received := time.Now()
		<-time.After(time.Second)
		waiting := time.Now()
		requests := make([]Request, 3)
		for i := range requests {
			requests[i] = p.Request()
			go requests[i].Acquire(describing{waiter{t.Context()}, fmt.Sprintf("GET r/%d", i), received})
			synctest.Wait()
		}
		want := ColdStart{Key: key("r"), UID: types.UID("uid"), Request: "GET r/0", Received: received}
		if got := s.ColdStarts(); !cmp.Equal(got, []ColdStart{want}) {
			t.Errorf("begun: %+v, want %+v", got, want)
		}
		<-time.After(time.Second)
		s.SetBackends(key("r"), ready("a"))
		synctest.Wait()
		want.Granted, want.Backend = waiting.Add(time.Second), "a"
		if got := s.ColdStarts(); !cmp.Equal(got, []ColdStart{want}) {
			t.Errorf("with a backend: %+v, want %+v", got, want)
		}
		<-time.After(time.Second)
		for i := range requests {
			requests[i].ResponseStarted()
			requests[i].ResponseStarted()
		}
		want.Responded = waiting.Add(2 * time.Second)
		if got := s.ColdStarts(); !cmp.Equal(got, []ColdStart{want}) {
			t.Errorf("answered: %+v, want %+v", got, want)
		}
		if p.acquire(t.Context()); s.ColdStarts() != nil {
			t.Error("a request that found a backend began a cold start")
		}
	})
}

// TestCanceledColdStart checks that a cold start ends when no request waits any more, and that the next one is another.
func TestCanceledColdStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newPools()
		s.SetRevision(revision(0))
		for range 2 {
			ctx, cancel := context.WithCancel(t.Context())
			go poolOf(s).acquire(ctx)
			synctest.Wait()
			<-time.After(time.Second)
			cancel()
			synctest.Wait()
			got := s.ColdStarts()
			if len(got) != 2 || !got[0].Canceled.IsZero() || got[1].Canceled != got[1].Received.Add(time.Second) || !got[1].Granted.IsZero() {
				t.Errorf("%+v", got)
			}
		}
	})
}

// TestColdStartsAreBounded checks that the oldest changes are dropped.
func TestColdStartsAreBounded(t *testing.T) {
	var s coldStarts
	for i := range 1000 {
		s.add(&ColdStart{Backend: fmt.Sprint(i)})
	}
	all := s.drain()
	if len(all) != maxColdStarts || !slices.ContainsFunc(all, func(c ColdStart) bool { return c.Backend == "999" }) {
		t.Errorf("%d changes", len(all))
	}
}
