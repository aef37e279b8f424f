// Package logqueue reads queues of the event log: on demand, and within the memory budget of a namespace.
package logqueue

import (
	"context"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
)

// Log is the durable log of events. eventlog.Log implements it by JetStream.
type Log interface {
	// Stream returns a stream of the log, and creates it if it does not exist.
	Stream(ctx context.Context, config eventlog.StreamConfig) (Stream, error)
	DeleteStream(ctx context.Context, id string) error
	// ReleaseStream stops all consumers of a stream: unacknowledged segments are redelivered immediately to consumers in
	// other processes. Nothing is deleted.
	ReleaseStream(id string)
	// StreamIDs lists the existing streams.
	StreamIDs(ctx context.Context) ([]string, error)
}

// Stream is a stream of a Log. See eventlog.Stream.
type Stream interface {
	Append(ctx context.Context, records ...eventlog.Record) error
	AppendNew(ctx context.Context, records ...eventlog.Record) error
	Queues(ctx context.Context) (map[string]uint64, error)
	Consume(queue string, o eventlog.ConsumeOptions, handle func(Segment)) (Consumer, error)
	DeleteQueue(ctx context.Context, queue string) error
}

// Consumer delivers segments until it is stopped. See eventlog.Consumer.
type Consumer interface{ Stop() }

// Segment is a number of records that were written together. See eventlog.Segment.
type Segment struct {
	Records [][]byte
	// Attempt counts deliveries of the segment from 1.
	Attempt int
	// Pending is the number of segments behind it.
	Pending uint64
	Handle  Handle
}

// Handle acknowledges or rejects a segment.
type Handle interface {
	// Ack removes the segment from its queue.
	Ack()
	// Nack makes the segment be redelivered after a delay.
	Nack(delay time.Duration)
}

// JetStream returns an event log as a Log.
func JetStream(log *eventlog.Log) Log { return jetStream{log} }

type jetStream struct{ *eventlog.Log }

func (j jetStream) Stream(ctx context.Context, config eventlog.StreamConfig) (Stream, error) {
	s, err := j.Log.Stream(ctx, config)
	if err != nil {
		return nil, err
	}
	return jetStreamStream{s}, nil
}

type jetStreamStream struct{ *eventlog.Stream }

func (s jetStreamStream) Consume(queue string, o eventlog.ConsumeOptions, handle func(Segment)) (Consumer, error) {
	return s.Stream.Consume(queue, o, func(f *eventlog.Segment) {
		handle(Segment{Records: f.Records, Attempt: f.Attempt, Pending: f.Pending, Handle: f})
	})
}
