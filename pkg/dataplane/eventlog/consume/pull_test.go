package consume

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/layout"
)

// A late status of a request that brought all its segments does not end the next one.
func TestStatus(t *testing.T) {
	for status, want := range map[[2]string]error{
		{"100", "Idle Heartbeat"}:                nil,
		{"408", "Request Timeout"}:               errExpired,
		{"409", "Batch Completed"}:               nil,
		{"409", "Message Size Exceeds MaxBytes"}: errTooSmall,
	} {
		p := &puller{wake: make(chan struct{}, 1), remaining: 1}
		p.receive(&nats.Msg{Header: nats.Header{"Status": {status[0]}, "Description": {status[1]}}})
		if !errors.Is(p.ended, want) || len(p.wake) == 1 != (want != nil) {
			t.Errorf("%s: ended by %v, want %v", status, p.ended, want)
		}
	}
	for _, status := range [][2]string{{"409", "Consumer Deleted"}, {"409", "Leadership Change"}, {"503", ""}} {
		p := &puller{wake: make(chan struct{}, 1), remaining: 1}
		p.receive(&nats.Msg{Header: nats.Header{"Status": {status[0]}, "Description": {status[1]}}})
		if p.ended == nil || errors.Is(p.ended, errTooSmall) || errors.Is(p.ended, errExpired) {
			t.Errorf("%s: ended by %v, want another error", status, p.ended)
		}
	}
}

// A request whose bytes are used up exactly is followed by another one, although the server sends no status.
func TestExactBytes(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.publish(t, "first", "second")
	// The size of a message includes the names of stream and consumer.
	measuring, err := h.stream.CreateConsumer(patient(t), jetstream.ConsumerConfig{
		Durable: layout.Consumer(h.queue.Name), FilterSubject: h.queue.Stream.Subject(h.queue.Name), AckPolicy: jetstream.AckExplicitPolicy,
	})
	if err != nil {
		t.Fatal(err)
	}
	batch, err := measuring.Fetch(2)
	if err != nil {
		t.Fatal(err)
	}
	bytes := 0
	for msg := range batch.Messages() {
		bytes += len(msg.Subject()) + len(msg.Reply()) + len(msg.Data())
	}
	if err := h.stream.DeleteConsumer(patient(t), layout.Consumer(h.queue.Name)); err != nil {
		t.Fatal(err)
	}

	segments := make(chan *Segment, 100)
	c, err := h.consumers.Start(h.queue, Options{MaxBytes: bytes}, func(s *Segment) { segments <- s })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	next(t, segments).Ack()
	next(t, segments).Ack()
	h.publish(t, "third")
	if s := next(t, segments); string(s.Records[0]) != "third" {
		t.Errorf("record '%s' was delivered, want 'third'", s.Records[0])
	}
}

// Fetch of the client library drops messages that arrive while its context ends: they wait for AckWait until they are
// redelivered. If this test fails, the library may replace puller.
func TestFetchDropsMessages(t *testing.T) {
	h := newHarness(t)
	const segments, rounds = 200, 50
	for range segments {
		h.publish(t, "a")
	}
	// fetch returns the number of sent and of received segments.
	fetch := func() (sent, received int) {
		consumer, err := h.stream.CreateConsumer(patient(t), jetstream.ConsumerConfig{
			Durable: "fetch", FilterSubject: h.queue.Stream.Subject(""), AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Hour,
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		batch, err := consumer.Fetch(segments, jetstream.FetchContext(ctx))
		if err != nil {
			t.Fatal(err)
		}
		for range batch.Messages() {
			received++
			cancel()
		}
		info, err := consumer.Info(patient(t))
		if err != nil {
			t.Fatal(err)
		}
		if err := h.stream.DeleteConsumer(patient(t), "fetch"); err != nil {
			t.Fatal(err)
		}
		return info.NumAckPending, received
	}
	for range rounds {
		if sent, received := fetch(); received < sent {
			return
		}
	}
	t.Errorf("all sent segments were received, %d times", rounds)
}
