package broker

import (
	"context"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
)

// Log is the durable log of events, as eventlog.Log is one.
type Log interface {
	// Stream makes a stream of the log, unless there is one of that ID.
	Stream(ctx context.Context, config eventlog.StreamConfig) (LogStream, error)
	DeleteStream(ctx context.Context, id string) error
	// ReleaseStream ends all consumptions of a stream: what was handed over here and is not settled is handed over at
	// once to whom else listens. Nothing is deleted.
	ReleaseStream(id string)
	// StreamIDs lists the streams there are.
	StreamIDs(ctx context.Context) ([]string, error)
}

// LogStream is a stream of a Log. See eventlog.Stream.
type LogStream interface {
	Append(ctx context.Context, records ...eventlog.Record) error
	AppendNew(ctx context.Context, records ...eventlog.Record) error
	Queues(ctx context.Context) (map[string]uint64, error)
	Consume(queue string, o eventlog.ConsumeOptions, handle func(Frame)) (Consumption, error)
	DeleteQueue(ctx context.Context, queue string) error
}

// Consumption hands over frames until it is stopped. See eventlog.Consumption.
type Consumption interface{ Stop() }

// Frame is a number of records that were written together. See eventlog.Frame.
type Frame struct {
	Records [][]byte
	// Attempt counts from 1 how often the frame was handed over.
	Attempt int
	// Pending is the number of frames behind it.
	Pending uint64
	Handle  FrameHandle
}

// FrameHandle settles what becomes of a frame.
type FrameHandle interface {
	// Done removes the frame from its queue.
	Done()
	// Again has the frame handed over again after some time.
	Again(after time.Duration)
}

// JetStream returns the Log that an event log is.
func JetStream(log *eventlog.Log) Log { return jetStream{log} }

type jetStream struct{ *eventlog.Log }

func (j jetStream) Stream(ctx context.Context, config eventlog.StreamConfig) (LogStream, error) {
	s, err := j.Log.Stream(ctx, config)
	if err != nil {
		return nil, err
	}
	return jetStreamStream{s}, nil
}

type jetStreamStream struct{ *eventlog.Stream }

func (s jetStreamStream) Consume(queue string, o eventlog.ConsumeOptions, handle func(Frame)) (Consumption, error) {
	return s.Stream.Consume(queue, o, func(f *eventlog.Frame) {
		handle(Frame{Records: f.Records, Attempt: f.Attempt, Pending: f.Pending, Handle: f})
	})
}
