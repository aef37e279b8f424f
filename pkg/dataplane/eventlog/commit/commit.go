package eventlog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/layout"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/server"
)

const (
	// maxFrame and maxRecords bound a frame, maxMessages and maxBatch a commit, in bytes where they are no counts.
	// Servers take no more than 1,000 messages at once.
	maxFrame    = 4 << 20
	maxRecords  = 1024
	maxMessages = 512
	maxBatch    = 32 << 20
	// maxWaiting is how many bytes may wait for the commits before theirs, per stream. There are more only if the disk or
	// the cluster stands still, and those who wait give up and come again.
	maxWaiting = 256 << 20

	// retryFor is for how long after it was gathered
	// what failed is tried again before the error is told, retryEvery the time between.
	retryFor   = 5 * time.Second
	retryEvery = 100 * time.Millisecond
	// The embedded servers of a cluster take up to 9 s to find that the one that leads a stream was killed, and another.
	clusterRetryFor = 12 * time.Second
	// maxPause bounds the time between commits.
	maxPause = 50 * time.Millisecond
)

// Record is what is appended: an event, or a delivery to be made again.
type Record struct {
	// Queue is a consumer's UID, or empty for the shared queue.
	Queue string
	Data  []byte
	// Alone gives the record a frame of its own, so that it is done or comes again alone.
	Alone bool
}

// batch is what is committed together.
type batch struct {
	began   time.Time
	frames  []*frame
	open    map[string]*frame // the last frame of each queue that takes more records
	appends int               // that wait for it
	records int
	bytes   int
	done    chan struct{} // closed after err is set
	err     error
}

// frame is a message that is being filled.
type frame struct {
	queue   string
	records int
	data    []byte
}

// AppendNew is Append for records that the log does not know yet. It fails with ErrShareFull while the streams of the tenant hold as
// much as they may. What was accepted before is written again by Append, which has no such bound.
func (s *Stream) AppendNew(ctx context.Context, records ...Record) error {
	if shares := s.shares(); shares != nil {
		var bytes int64
		for i := range records {
			bytes += int64(layout.RecordSize(len(records[i].Data)))
		}
		if err := shares.take(s.config.Tenant, bytes); err != nil {
			return fmt.Errorf("append to stream '%s': %w", s.config.ID, err)
		}
		defer shares.written(s.config.Tenant, bytes)
	}
	return s.Append(ctx, records...)
}

// Append returns nil when all records are durable: synced to the disk of this machine, or to those of most servers of the
// Cluster, or acknowledged by the cluster at the URL.
// Appends that wait at the same time are committed together, and one that is larger than a commit is split. The records' data may be reused after it returns. When
// ctx ends first, its error is returned, and the records may or may not be stored; so they may after ErrUnavailable.
func (s *Stream) Append(ctx context.Context, records ...Record) error {
	for len(records) > 0 {
		n, bytes := chunk(records)
		if err := s.append(ctx, records[:n], bytes); err != nil {
			return err
		}
		records = records[n:]
	}
	return nil
}

// chunk returns how many of the records make one commit, at least one, and their size.
func chunk(records []Record) (n, bytes int) {
	for n < len(records) {
		size := layout.RecordSize(len(records[n].Data))
		if n > 0 && bytes+size > maxBatch {
			break
		}
		bytes += size
		n++
	}
	return n, bytes
}

// append is Append of what makes one commit.
func (s *Stream) append(ctx context.Context, records []Record, bytes int) error {
	if err := s.admit(int64(bytes)); err != nil {
		return fmt.Errorf("append to stream '%s': %w", s.config.ID, err)
	}
	b, err := s.gather(records, bytes) //nolint:contextcheck // a commit is for all who wait, it does not end with one of them
	if err != nil {
		return fmt.Errorf("append to stream '%s': %w", s.config.ID, err)
	}
	select {
	case <-b.done:
		return b.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// admit returns why the log takes no records of so many bytes at present, if it does not.
func (s *Stream) admit(bytes int64) error {
	l := s.log
	if s.deleted.Load() || l.ctx.Err() != nil {
		return ErrClosed
	}
	if err := l.server.Err(); err != nil {
		return err
	}
	if l.space != nil && !s.config.Memory {
		return l.space.Check(bytes)
	}
	return nil
}

// gather adds records to the batch to be committed next, all to the same one.
func (s *Stream) gather(records []Record, bytes int) (*batch, error) {
	limit := server.MaxPayload
	if session := s.log.server.Current(); session != nil {
		limit = int(session.Conn.MaxPayload())
	}
	limit -= layout.Overhead
	for i := range records {
		if layout.RecordSize(len(records[i].Data))+1 > limit {
			return nil, fmt.Errorf("%w: %d bytes, at most %d are taken", ErrTooLarge, len(records[i].Data), limit)
		}
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting+bytes > maxWaiting {
		return nil, fmt.Errorf("%w: too much waits to be written", ErrUnavailable)
	}
	if q := s.quota(); q != nil {
		if err := q.take(int64(bytes)); err != nil {
			return nil, err
		}
	}
	var b *batch
	if n := len(s.batches); n > 0 {
		b = s.batches[n-1]
	}
	if b == nil || len(b.frames)+len(records) > maxMessages || b.bytes+bytes > maxBatch {
		b = &batch{began: time.Now(), open: map[string]*frame{}, done: make(chan struct{})}
		s.batches = append(s.batches, b)
	}
	for i := range records {
		b.add(&records[i], min(limit, maxFrame))
	}
	b.appends++
	b.bytes += bytes
	s.waiting += bytes
	if !s.committing {
		s.committing = true
		go s.commit()
	}
	return b, nil
}

// add puts a record into the open frame of its queue, or a new one.
func (b *batch) add(r *Record, limit int) {
	b.records++
	size := layout.RecordSize(len(r.Data))
	f := b.open[r.Queue]
	if r.Alone || f == nil || f.records == maxRecords || len(f.data)+size > limit {
		f = &frame{queue: r.Queue}
		b.frames = append(b.frames, f)
		// What comes after a record of its own may not be stored before it.
		b.open[r.Queue] = f
		if r.Alone {
			delete(b.open, r.Queue)
		}
	}
	f.data = layout.AppendRecord(f.data, r.Data)
	f.records++
}

// commit writes one batch after the other until there is none. It runs once per stream at a time.
func (s *Stream) commit() {
	for {
		s.mu.Lock()
		if len(s.batches) == 0 {
			s.committing = false
			s.batches = nil
			s.mu.Unlock()
			return
		}
		b := s.batches[0]
		s.batches = s.batches[1:]
		s.waiting -= b.bytes
		s.mu.Unlock()

		began := time.Now()
		if err := s.write(b); err != nil {
			s.log.metrics.failures.Inc()
			b.err = fmt.Errorf("append to stream '%s': %w", s.config.ID, err)
		} else {
			s.log.metrics.commits.Inc()
			s.log.metrics.frames.Add(float64(len(b.frames)))
			s.log.metrics.records.Add(float64(b.records))
		}
		if q := s.quota(); q != nil {
			q.written(int64(b.bytes))
		}
		close(b.done)
		s.pause(b, time.Since(began))
	}
}

// pause waits after a commit for twice the time that it took, if it was for several who may come again at once: then they
// share the next one as well, in place of the first of them having one by itself. In a cluster each costs syncs on all
// servers, which the streams of others wait for too.
func (s *Stream) pause(b *batch, took time.Duration) {
	if b.appends < 2 || !s.log.server.Clustered() {
		return
	}
	s.mu.Lock()
	full := len(s.batches) > 1
	s.mu.Unlock()
	if !full {
		time.Sleep(min(2*took, maxPause))
	}
}

// write stores a batch, and tries for a while if the server is unavailable. Its errors wrap those of the package.
func (s *Stream) write(b *batch) error {
	for {
		err := s.admit(0)
		if err == nil {
			err = s.writeOnce(b.frames)
		}
		if err == nil || !errors.Is(err, ErrUnavailable) || time.Since(b.began) > s.log.retryFor() {
			return err
		}
		select {
		case <-time.After(retryEvery):
		case <-s.log.ctx.Done():
			return ErrClosed
		}
	}
}

func (l *Log) retryFor() time.Duration {
	if l.server.Clustered() {
		return clusterRetryFor
	}
	return retryFor
}

func (s *Stream) writeOnce(frames []*frame) error {
	ctx, cancel := context.WithTimeout(s.log.ctx, retryFor)
	defer cancel()
	session, err := s.log.server.Session(ctx)
	if err != nil {
		if s.log.ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
			return ErrUnavailable
		}
		return err
	}
	if session.SyncFailed() {
		return fmt.Errorf("%w: the server is restarted after a sync failed", ErrUnavailable)
	}
	for len(frames) > 0 && err == nil {
		n := min(len(frames), maxMessages)
		if n > 1 && s.atomic() {
			err = s.writeAtomically(session, frames[:n])
		} else {
			err = s.writeEach(session, frames[:n])
		}
		frames = frames[n:]
	}
	if err == nil && session.Local && !s.config.Memory {
		if err = s.disk.sync(); err != nil {
			session.FailSync(s.disk.rewrite)
			return err
		}
	}
	if s.config.Memory && !s.deleted.Load() && errors.Is(err, jetstream.ErrNoStreamResponse) {
		// A stream in memory is gone with the server that had it; the caller tries again.
		if _, err := session.EnsureStream(ctx, s.log.config(s.config)); err != nil {
			return s.log.server.Classify(err)
		}
	}
	return s.log.server.Classify(err)
}

// atomic tells whether several messages are cheaper as an atomic batch. With replicas, it is one proposal instead of
// many. On the disk of a single server, a batch is written twice and its second copy removed again, which costs many times
// what a sync does, and all messages of a commit are synced at once anyhow.
func (s *Stream) atomic() bool { return s.log.opts.Replicas > 1 || s.config.Memory }

func (s *Stream) writeEach(session *server.Session, frames []*frame) error {
	futures := make([]jetstream.PubAckFuture, 0, len(frames))
	var failed error
	for _, f := range frames {
		future, err := session.JetStream.PublishMsgAsync(&nats.Msg{Subject: s.names.Subject(f.queue), Data: f.data})
		if err != nil {
			failed = err
			break
		}
		futures = append(futures, future)
	}
	for _, future := range futures {
		if err := s.await(session, future); err != nil && failed == nil {
			failed = err
		}
	}
	return failed
}

// await waits for an acknowledgement. The embedded server sends none after a write error, so one that is slow has
// supervise look at it.
func (s *Stream) await(session *server.Session, future jetstream.PubAckFuture) error {
	slow := time.NewTimer(time.Second)
	defer slow.Stop()
	for {
		select {
		case <-future.Ok():
			return nil
		case err := <-future.Err():
			return err
		case <-session.Ended():
			return server.ErrEnded
		case <-slow.C:
			s.log.server.Suspect()
			slow.Reset(time.Second)
		}
	}
}
