package eventlog

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go/jetstream"
)

// StreamConfig describes a stream.
type StreamConfig struct {
	// ID is the UID of a Broker or Channel.
	ID string
	// Description is for people who look at the NATS server.
	Description string
	// Tenant owns the stream together with others, which share a part of the embedded store. Without one there is no such
	// bound.
	Tenant string
	// Memory keeps the records in the server's memory: they do not survive its restart.
	Memory bool
}

// Stream is the log of one Broker or Channel.
type Stream struct {
	log     *Log
	config  StreamConfig
	name    string
	deleted atomic.Bool
	// thin says that fewer servers hold it than should.
	thin  atomic.Bool
	acked acked
	// disk is used by the one that commits.
	disk disk

	mu         sync.Mutex
	batches    []*batch // gathered, to be committed in order
	waiting    int      // bytes of batches
	committing bool
}

const (
	sharedQueue      = "shared"
	installationMeta = "knative-installation"
	idMeta           = "knative-uid"
	tenantMeta       = "knative-tenant"
)

func (l *Log) streamName(id string) string { return "KN_" + l.opts.Installation + "_" + id }

// prefix begins the subjects of a stream's messages.
func (l *Log) prefix(id string) string { return "KN." + l.opts.Installation + "." + id + "." }

// ownQueue comes between the prefix and the name of a queue that is not the shared one.
const ownQueue = "queue."

// subject is that of a queue's messages. Queues are UIDs.
func (s *Stream) subject(queue string) string {
	if queue == "" {
		return s.log.prefix(s.config.ID) + sharedQueue
	}
	return s.log.prefix(s.config.ID) + ownQueue + queue
}

// durable is the name of a queue's consumer.
func durable(queue string) string {
	if queue == "" {
		return sharedQueue
	}
	return "queue_" + queue
}

func (l *Log) config(c StreamConfig) jetstream.StreamConfig {
	config := jetstream.StreamConfig{
		Name:        l.streamName(c.ID),
		Description: c.Description,
		Subjects:    []string{l.prefix(c.ID) + ">"},
		Metadata:    map[string]string{installationMeta: l.opts.Installation, idMeta: c.ID},
		// What is done is removed, and nothing else: not by age, not by size.
		Retention:          jetstream.WorkQueuePolicy,
		Discard:            jetstream.DiscardNew,
		MaxBytes:           -1,
		Replicas:           l.opts.Replicas,
		AllowAtomicPublish: true,
	}
	if c.Tenant != "" {
		config.Metadata[tenantMeta] = c.Tenant
	}
	if l.opts.MaxStreamBytes > 0 {
		config.MaxBytes = l.opts.MaxStreamBytes
	}
	if c.Memory {
		config.Storage = jetstream.MemoryStorage
		if l.embedded() {
			config.MaxBytes = min(config.MaxBytes, maxMemory/streamShare)
			if config.MaxBytes < 0 {
				config.MaxBytes = maxMemory / streamShare
			}
		}
	}
	return config
}

// Stream returns the stream of an ID, which it creates if there is none. There is one Stream per ID. One that is
// there already gets the description and the log's limits; it is an error if it is stored otherwise.
func (l *Log) Stream(ctx context.Context, c StreamConfig) (*Stream, error) {
	if !names.MatchString(c.ID) {
		return nil, fmt.Errorf("event log: stream '%s' must be named by letters, digits, '-' and '_'", c.ID)
	}
	l.mu.Lock()
	stream := l.streams[c.ID]
	l.mu.Unlock()
	if stream != nil && stream.config == c {
		return stream, nil
	}
	s, err := l.session(ctx)
	if err != nil {
		return nil, fmt.Errorf("event log: stream '%s': %w", c.ID, err)
	}
	thin, err := l.ensure(ctx, s, l.config(c))
	if err != nil {
		return nil, l.explain(fmt.Sprintf("create stream '%s'", c.ID), err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if stream = l.streams[c.ID]; stream == nil {
		stream = &Stream{log: l, config: c, name: l.streamName(c.ID)}
		stream.disk.dir = filepath.Join(streamsDir(l.opts.Dir), stream.name, "msgs")
		l.streams[c.ID] = stream
	}
	stream.thin.Store(thin)
	return stream, nil
}

func (l *Log) cached() []*Stream {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]*Stream, 0, len(l.streams))
	for _, s := range l.streams {
		all = append(all, s)
	}
	return all
}

// ReleaseStream ends the consumptions of a stream in this process, so that another one goes on with it: frames that are
// not done are given back, and come again at once wherever their queue is consumed. What is done with them here
// afterwards does not count. The stream can still be appended to, and consumed again.
func (l *Log) ReleaseStream(id string) {
	for _, c := range l.running() {
		if c.stream.config.ID == id {
			c.release()
		}
	}
}

// DeleteStream deletes a stream with its records, and ends its consumptions. It is no error if there is none.
func (l *Log) DeleteStream(ctx context.Context, id string) error {
	l.mu.Lock()
	if s := l.streams[id]; s != nil {
		s.deleted.Store(true)
		delete(l.streams, id)
	}
	l.mu.Unlock()
	l.stop(func(c *Consumption) bool { return c.stream.config.ID == id })
	s, err := l.session(ctx)
	if err != nil {
		return fmt.Errorf("event log: delete stream '%s': %w", id, err)
	}
	if err := s.js.DeleteStream(ctx, l.streamName(id)); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return l.explain(fmt.Sprintf("delete stream '%s'", id), err)
	}
	return nil
}

// StreamIDs returns the IDs of this installation's streams.
func (l *Log) StreamIDs(ctx context.Context) ([]string, error) {
	s, err := l.session(ctx)
	if err != nil {
		return nil, fmt.Errorf("event log: list streams: %w", err)
	}
	var ids []string
	list := s.js.ListStreams(ctx, jetstream.WithStreamListSubject("KN."+l.opts.Installation+".>"))
	for info := range list.Info() {
		if info.Config.Metadata[installationMeta] == l.opts.Installation {
			ids = append(ids, info.Config.Metadata[idMeta])
		}
	}
	if list.Err() != nil {
		return nil, l.explain("list streams", list.Err())
	}
	return ids, nil
}

// Queues returns the queues that hold frames, and how many.
func (s *Stream) Queues(ctx context.Context) (map[string]uint64, error) {
	session, err := s.log.session(ctx)
	if err != nil {
		return nil, fmt.Errorf("event log: queues of stream '%s': %w", s.config.ID, err)
	}
	stream, err := session.js.Stream(ctx, s.name)
	if err != nil {
		return nil, s.log.explain(fmt.Sprintf("queues of stream '%s'", s.config.ID), err)
	}
	prefix := s.log.prefix(s.config.ID)
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(prefix+">"))
	if err != nil {
		return nil, s.log.explain(fmt.Sprintf("queues of stream '%s'", s.config.ID), err)
	}
	queues := make(map[string]uint64, len(info.State.Subjects))
	for subject, n := range info.State.Subjects {
		// That of the shared queue is left empty.
		_, queue, _ := strings.Cut(subject, prefix+ownQueue)
		queues[queue] = n
	}
	return queues, nil
}

// DeleteQueue removes a queue's frames, and ends its consumptions.
func (s *Stream) DeleteQueue(ctx context.Context, queue string) error {
	what := fmt.Sprintf("delete queue '%s' of stream '%s'", queue, s.config.ID)
	s.log.stop(func(c *Consumption) bool { return c.stream == s && c.queue == queue })
	session, err := s.log.session(ctx)
	if err != nil {
		return fmt.Errorf("event log: %s: %w", what, err)
	}
	err = session.js.DeleteConsumer(ctx, s.name, durable(queue))
	if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return s.log.explain(what, err)
	}
	stream, err := session.js.Stream(ctx, s.name)
	if err == nil {
		err = stream.Purge(ctx, jetstream.WithPurgeSubject(s.subject(queue)))
	}
	if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return s.log.explain(what, err)
	}
	return nil
}
