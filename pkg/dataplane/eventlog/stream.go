package eventlog

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/commit"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/consume"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/layout"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/server"
)

// StreamConfig describes a stream.
type StreamConfig struct {
	// ID is the UID of a Broker or Channel.
	ID string
	// Description is shown by NATS tools.
	Description string
	// Tenant owns the stream: all its streams share a part of the embedded store. "" means no such limit.
	Tenant string
	// Memory stores the records in the server's memory: they do not survive its restart.
	Memory bool
}

// Stream is the log of one Broker or Channel.
type Stream struct {
	log     *Log
	config  StreamConfig
	names   layout.Stream
	writer  *commit.Writer
	deleted atomic.Bool
}

// Stream returns the stream of an ID, and creates it unless it exists. An ID has one Stream. An existing one gets the
// description and the log's limits; it is an error if it has another storage.
func (l *Log) Stream(ctx context.Context, c StreamConfig) (*Stream, error) {
	if !server.ValidName(c.ID) {
		return nil, fmt.Errorf("event log: stream '%s' must consist of letters, digits, '-' and '_'", c.ID)
	}
	l.mu.Lock()
	stream := l.streams[c.ID]
	l.mu.Unlock()
	if stream != nil && stream.config == c {
		return stream, nil
	}
	s, err := l.server.Session(ctx)
	if err != nil {
		return nil, fmt.Errorf("event log: stream '%s': %w", c.ID, err)
	}
	config := l.config(c)
	underReplicated, err := s.EnsureStream(ctx, config)
	if err != nil {
		return nil, l.server.Explain(fmt.Sprintf("create stream '%s'", c.ID), err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if stream = l.streams[c.ID]; stream == nil {
		stream = l.newStream(c, config)
		l.streams[c.ID] = stream
	}
	l.server.Streams.Track(config, underReplicated)
	return stream, nil
}

// newStream returns a stream that exists in JetStream with a configuration.
func (l *Log) newStream(c StreamConfig, config jetstream.StreamConfig) *Stream {
	o := commit.Options{
		Server: l.server, Stream: l.names(c.ID), Config: config, Tenant: c.Tenant, Metrics: &l.metrics.commit,
		Dir: server.MessageDir(l.opts.Dir, config.Name), Space: l.space, Quota: l.disk, Shares: l.diskShares,
	}
	if c.Memory {
		o.Space, o.Quota, o.Shares = nil, l.memory, l.memoryShares
	} else if l.server.Embedded() {
		o.Cached = l.opts.Cached
	}
	return &Stream{log: l, config: c, names: o.Stream, writer: commit.New(o)}
}

// Append returns nil when all records are durable: synced to the disk of this machine, or to the disks of most servers of
// the Cluster, or acknowledged by the servers at the URL. Concurrent appends are committed together. The records' data may
// be reused after it returns. When ctx is canceled first, its error is returned, and the records may or may not be stored, as
// after ErrUnavailable.
func (s *Stream) Append(ctx context.Context, records ...Record) error {
	return s.writer.Append(ctx, records...)
}

// AppendNew appends records that the log has not accepted before. It fails with ErrShareFull while the streams of the
// tenant hold their share. Append, for records that were accepted before, has no such limit.
func (s *Stream) AppendNew(ctx context.Context, records ...Record) error {
	return s.writer.AppendNew(ctx, records...)
}

// Consume passes the segments of a queue to handle, one after the other in the order in which they were appended, except
// for redeliveries. handle may block, which blocks this consumer only. All consumers of a queue share its segments, also
// those in other processes.
func (s *Stream) Consume(queue string, o ConsumeOptions, handle func(*Segment)) (*Consumer, error) {
	if queue != "" && !server.ValidName(queue) {
		return nil, fmt.Errorf("event log: queue '%s' must consist of letters, digits, '-' and '_'", queue)
	}
	consumer, err := s.log.consumers.Start(consume.Queue{Stream: s.names, Name: queue}, o, handle)
	// DeleteStream may run concurrently.
	if err == nil && s.deleted.Load() {
		consumer.Stop()
		return nil, fmt.Errorf("event log: consume stream '%s': %w", s.config.ID, ErrClosed)
	}
	return consumer, err
}

// ReleaseStream stops the consumers of a stream in this process, so that another one continues: unacknowledged segments are
// redelivered immediately wherever their queue is consumed, and acknowledgements in this process have no effect any more.
// The stream can still be appended to, and consumed again.
func (l *Log) ReleaseStream(id string) { l.consumers.Release(l.names(id)) }

// DeleteStream stops the consumers of a stream, and deletes it with its records. It succeeds if the stream does not exist.
func (l *Log) DeleteStream(ctx context.Context, id string) error {
	l.mu.Lock()
	if s := l.streams[id]; s != nil {
		s.deleted.Store(true)
		s.writer.Close()
		delete(l.streams, id)
		l.server.Streams.Untrack(l.names(id).Name())
	}
	l.mu.Unlock()
	l.consumers.Forget(l.names(id))
	s, err := l.server.Session(ctx)
	if err != nil {
		return fmt.Errorf("event log: delete stream '%s': %w", id, err)
	}
	if err := s.JetStream.DeleteStream(ctx, l.names(id).Name()); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return l.server.Explain(fmt.Sprintf("delete stream '%s'", id), err)
	}
	return nil
}

// StreamIDs returns the IDs of this installation's streams.
func (l *Log) StreamIDs(ctx context.Context) ([]string, error) {
	s, err := l.server.Session(ctx)
	if err != nil {
		return nil, fmt.Errorf("event log: list streams: %w", err)
	}
	var ids []string
	list := s.JetStream.ListStreams(ctx, jetstream.WithStreamListSubject(layout.Subjects(l.opts.Installation)))
	for info := range list.Info() {
		if info.Config.Metadata[layout.InstallationKey] == l.opts.Installation {
			ids = append(ids, info.Config.Metadata[layout.IDKey])
		}
	}
	if list.Err() != nil {
		return nil, l.server.Explain("list streams", list.Err())
	}
	return ids, nil
}

// Queues returns the number of segments of each queue that has any.
func (s *Stream) Queues(ctx context.Context) (map[string]uint64, error) {
	session, err := s.log.server.Session(ctx)
	if err != nil {
		return nil, fmt.Errorf("event log: queues of stream '%s': %w", s.config.ID, err)
	}
	stream, err := session.JetStream.Stream(ctx, s.names.Name())
	if err != nil {
		return nil, s.log.server.Explain(fmt.Sprintf("queues of stream '%s'", s.config.ID), err)
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(s.names.Subjects()))
	if err != nil {
		return nil, s.log.server.Explain(fmt.Sprintf("queues of stream '%s'", s.config.ID), err)
	}
	queues := make(map[string]uint64, len(info.State.Subjects))
	for subject, n := range info.State.Subjects {
		queues[s.names.Queue(subject)] = n
	}
	return queues, nil
}

// DeleteQueue stops the consumers of a queue, and removes its segments. Earlier appends by this Stream end before, so that they
// store nothing afterwards. Appends of other processes, and appends with an unknown result, may be stored later.
func (s *Stream) DeleteQueue(ctx context.Context, queue string) error {
	what := fmt.Sprintf("delete queue '%s' of stream '%s'", queue, s.config.ID)
	s.log.consumers.Stop(func(q consume.Queue) bool { return q == consume.Queue{Stream: s.names, Name: queue} })
	if err := s.writer.Settle(ctx); err != nil {
		return fmt.Errorf("event log: %s: wait for appends: %w", what, err)
	}
	session, err := s.log.server.Session(ctx)
	if err != nil {
		return fmt.Errorf("event log: %s: %w", what, err)
	}
	err = session.JetStream.DeleteConsumer(ctx, s.names.Name(), layout.Consumer(queue))
	if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return s.log.server.Explain(what, err)
	}
	stream, err := session.JetStream.Stream(ctx, s.names.Name())
	if err == nil {
		err = stream.Purge(ctx, jetstream.WithPurgeSubject(s.names.Subject(queue)))
	}
	if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return s.log.server.Explain(what, err)
	}
	return nil
}
