package consume

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"k8s.io/component-base/metrics"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/layout"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/server"
)

const patience = time.Minute

// patient returns a context with a deadline. A request without one ends after 5 s.
func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// harness is a stream of an embedded server, and its consumers.
type harness struct {
	stream    jetstream.Stream
	session   *server.Session
	consumers *Consumers
	queue     Queue
}

func newHarness(t *testing.T) *harness {
	t.Helper()
	s, err := server.Open(t.Context(), server.Options{
		Dir: t.TempDir(), Installation: "test", Replicas: 1, Restarts: metrics.NewCounter(&metrics.CounterOpts{Name: "restarts"}),
	})
	if err != nil {
		t.Fatal(err)
	}
	h := &harness{
		session: s.Current(), consumers: New(s, testr.New(t)), queue: Queue{Stream: layout.Stream{Installation: "test", ID: "a"}},
	}
	t.Cleanup(func() {
		s.Stop()
		h.consumers.Close()
		// A server of a slow process may not respond in time.
		if err := s.Close(); err != nil && !errors.Is(err, nats.ErrTimeout) {
			t.Error(err)
		}
	})
	h.stream, err = h.session.JetStream.CreateStream(patient(t), jetstream.StreamConfig{
		Name: h.queue.Stream.Name(), Subjects: []string{h.queue.Stream.Subjects()}, Retention: jetstream.WorkQueuePolicy,
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// publish stores segments of one record each.
func (h *harness) publish(t *testing.T, records ...string) {
	t.Helper()
	for _, r := range records {
		if _, err := h.session.JetStream.Publish(patient(t), h.queue.Stream.Subject(""), layout.AppendRecord(nil, []byte(r))); err != nil {
			t.Fatal(err)
		}
	}
}

func (h *harness) consume(t *testing.T) (<-chan *Segment, *Consumer) {
	t.Helper()
	segments := make(chan *Segment, 100)
	c, err := h.consumers.Start(h.queue, Options{}, func(s *Segment) { segments <- s })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	return segments, c
}

func next(t *testing.T, segments <-chan *Segment) *Segment {
	t.Helper()
	select {
	case s := <-segments:
		return s
	case <-time.After(patience):
		t.Fatal("no segment was delivered")
		return nil
	}
}

// waitStored waits until the stream has n segments.
func (h *harness) waitStored(t *testing.T, what string, n uint64) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		info, err := h.stream.Info(t.Context())
		if err == nil && info.State.Msgs == n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: the stream is %+v (%v), want %d segments", what, info, err, n)
		}
		<-time.After(20 * time.Millisecond)
	}
}

// eventing Event Acknowledgement and Delivery Retry: an acknowledged segment is not delivered again if the server did not
// get the acknowledgement in time, not even to a later consumer; but it is acknowledged again.
func TestLateAcknowledgement(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	k, c := h.consume(t)
	h.publish(t, "slow", "slower", "failed")
	slow, slower, failed := next(t, k), next(t, k), next(t, k)
	// Like Ack and Nack whose messages are lost.
	slow.settle(true)
	failed.settle(false)
	if s := next(t, k); string(s.Records[0]) != "failed" || s.Attempt < 2 {
		t.Errorf("record '%s' was delivered in attempt %d, want 'failed' in attempt 2", s.Records[0], s.Attempt)
	} else {
		s.Ack()
	}
	h.waitStored(t, "the segment is acknowledged again", 1)

	slower.settle(true)
	c.Stop()
	k2, _ := h.consume(t)
	h.waitStored(t, "the segment is acknowledged by another consumer", 0)
	if len(k) > 0 || len(k2) > 0 {
		t.Error("an acknowledged segment was delivered again")
	}
}
