package logqueue

import (
	"context"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
)

// pushed is a Stream with one consumer, to which the test passes segments.
type pushed struct {
	Stream
	handle chan func(Segment)
}

func (p pushed) Consume(_ string, _ eventlog.ConsumeOptions, handle func(Segment)) (Consumer, error) {
	p.handle <- handle
	return p, nil
}

func (pushed) Stop() {}

// settled receives the outcome of a segment.
type settled chan string

func (s settled) Ack()               { s <- "acknowledged" }
func (s settled) Nack(time.Duration) { s <- "rejected" }

// TestStop covers the segment that a log consumer may deliver while it is stopped: Stop waits until it was handled, and later ones
// are rejected.
func TestStop(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	log := pushed{handle: make(chan func(Segment), 1)}
	begun, proceed := make(chan struct{}), make(chan struct{})
	r := NewReader(ReaderConfig{
		Log: log, Clock: clock.RealClock{}, Options: func() eventlog.ConsumeOptions { return eventlog.ConsumeOptions{} },
		Handle: func(s Segment) {
			close(begun)
			<-proceed
			s.Handle.Ack()
		},
	})
	r.Expect()
	r.Start(ctx)
	handle := <-log.handle
	first, second := make(settled, 1), make(settled, 1)
	go handle(Segment{Handle: first})
	<-begun
	done := make(chan struct{})
	go func() {
		r.Stop()
		close(done)
	}()
	select {
	case <-done:
		t.Error("Stop returned while a segment was being handled")
	case <-time.After(100 * time.Millisecond):
	}
	close(proceed)
	<-done
	if got := <-first; got != "acknowledged" {
		t.Errorf("the segment that was being handled is %s", got)
	}
	handle(Segment{Handle: second})
	if got := <-second; got != "rejected" {
		t.Errorf("a segment after Stop is %s", got)
	}
	cancel()
	r.Wait()
}
