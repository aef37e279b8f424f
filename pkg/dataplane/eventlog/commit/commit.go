// Package commit appends records to a stream by group commit: concurrent appends are gathered in a batch, which is written
// and synced at once. It also limits what streams hold.
package commit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"k8s.io/component-base/metrics"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/layout"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/server"
)

const (
	// maxSegment (bytes) and maxRecords limit a segment, maxMessages and maxBatch (bytes) a batch. Servers accept 1,000
	// messages at once.
	maxSegment  = 4 << 20
	maxRecords  = 1024
	maxMessages = 512
	maxBatch    = 32 << 20
	// maxWaiting limits the bytes that wait for earlier commits of the stream. Only a blocked disk or cluster leads to more;
	// callers should retry later then.
	maxWaiting = 256 << 20

	// retryFor is the time for which a failed batch is retried before the error is returned, retryInterval the time between attempts.
	retryFor      = 5 * time.Second
	retryInterval = 100 * time.Millisecond
	// The embedded servers of a cluster take up to 9 s to detect that a stream's leader was killed, and to elect another.
	clusterRetryFor = 12 * time.Second
	// maxPause limits the time between commits. A commit of more appends than few is followed by the next as soon as it is as large.
	maxPause = 50 * time.Millisecond
	few      = 16
)

// Record is an event, or a delivery to retry.
type Record struct {
	// Queue is a consumer's UID, or empty for the shared queue.
	Queue string
	Data  []byte
	// Alone stores the record in a segment of its own, so that it is acknowledged and redelivered alone.
	Alone bool
}

// Options configure a Writer.
type Options struct {
	Server *server.Server
	// Stream names the stream, which exists with Config. Tenant is its owner, "" for none.
	Stream layout.Stream
	Config jetstream.StreamConfig
	Tenant string
	// Dir is the directory of the message files of an embedded server.
	Dir string
	// Recreate creates the stream again if another process deleted it.
	Recreate bool
	// Compress compresses segments of several records, whose writes it makes much smaller: for streams that are rarely read.
	Compress bool

	// Cached is called with the changes of the bytes of the stream that the embedded server has in memory, and the tenant; nil for no
	// estimate of them.
	Cached func(tenant string, bytes int64)

	// Space, Quota and Shares limit the stream; each may be nil.
	Space  *server.Space
	Quota  *Quota
	Shares *Shares

	Metrics *Metrics
}

// Metrics count the work of Writers.
type Metrics struct {
	Records, Segments, Commits, Failures metrics.CounterMetric
}

// Writer appends records to one stream.
type Writer struct {
	options Options
	closed  atomic.Bool
	// disk is used by commit.
	disk  disk
	cache cache

	mu         sync.Mutex
	batches    []*batch // to be committed in order
	waiting    int      // bytes of batches
	committing bool
	current    *batch // the last one that was taken from batches, nil unless committing
	// gathered is closed when a batch has wanted appends, or another begins. Nil unless gatherFor waits for that.
	wanted   int
	gathered chan struct{}
}

// New returns a writer.
func New(o Options) *Writer {
	w := &Writer{options: o, disk: disk{dir: o.Dir}}
	if o.Cached != nil {
		w.cache = cache{dir: o.Dir, report: func(bytes int64) { o.Cached(o.Tenant, bytes) }}
	}
	return w
}

// Close makes appends fail with ErrClosed.
func (w *Writer) Close() { w.closed.Store(true) }

// Settle waits until the records of all earlier appends are stored or rejected, including appends whose caller stopped waiting.
func (w *Writer) Settle(ctx context.Context) error {
	w.mu.Lock()
	last := w.current
	if n := len(w.batches); n > 0 {
		last = w.batches[n-1]
	}
	w.mu.Unlock()
	if last == nil {
		return nil
	}
	select {
	case <-last.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// batch is a set of segments that are committed together.
type batch struct {
	started  time.Time
	segments []*segment
	open     map[string]*segment // the last segment of each queue that accepts more records
	appends  int                 // that wait for it
	attempts int                 // to write it
	records  int
	bytes    int
	done     chan struct{} // closed after err is set
	err      error
}

// segment is a message that is being filled.
type segment struct {
	queue   string
	records int
	data    []byte
}

// AppendNew appends records that the log has not accepted before. It fails with ErrShareFull while the streams of the
// tenant hold their share. Append, for records that were accepted before, has no such limit.
func (w *Writer) AppendNew(ctx context.Context, records ...Record) error {
	if shares, tenant := w.options.Shares, w.options.Tenant; shares != nil && tenant != "" {
		var bytes int64
		for i := range records {
			bytes += int64(layout.RecordSize(len(records[i].Data)))
		}
		if err := shares.reserve(tenant, bytes); err != nil {
			return w.failed(err)
		}
		defer shares.settle(tenant, bytes)
	}
	return w.Append(ctx, records...)
}

// Append returns nil when all records are durable: synced to the disk of this machine, or to the disks of most servers of
// the cluster, or acknowledged by the servers at the URL.
// Concurrent appends are committed together, and one that is larger than a batch is split. The records' data may be reused
// after it returns. When ctx is canceled first, its error is returned, and the records may or may not be stored, as after
// ErrUnavailable.
func (w *Writer) Append(ctx context.Context, records ...Record) error {
	for len(records) > 0 {
		n, bytes := split(records)
		if err := w.append(ctx, records[:n], bytes); err != nil {
			return err
		}
		records = records[n:]
	}
	return nil
}

// split returns the number of records that fit in one batch, at least one, and their size.
func split(records []Record) (n, bytes int) {
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

// append appends the records of one batch.
func (w *Writer) append(ctx context.Context, records []Record, bytes int) error {
	p, err := w.start(records, bytes) //nolint:contextcheck // a commit serves all waiting callers, so it does not end with the context of one
	if err != nil {
		return err
	}
	return p.Wait(ctx)
}

// Pending is an append whose result is not known yet.
type Pending struct{ batch *batch }

// Wait returns the result as Append does.
func (p Pending) Wait(ctx context.Context) error {
	select {
	case <-p.batch.done:
		return p.batch.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Start is Append of one record without the wait for its result. The data may be reused after it returns.
func (w *Writer) Start(record Record) (Pending, error) {
	records := [1]Record{record}
	return w.start(records[:], layout.RecordSize(len(record.Data)))
}

// start adds the records of one batch to a batch.
func (w *Writer) start(records []Record, bytes int) (Pending, error) {
	if err := w.admit(int64(bytes)); err != nil {
		return Pending{}, w.failed(err)
	}
	b, err := w.gather(records, bytes)
	if err != nil {
		return Pending{}, w.failed(err)
	}
	return Pending{b}, nil
}

func (w *Writer) failed(err error) error {
	return fmt.Errorf("append to stream '%s': %w", w.options.Stream.ID, err)
}

// admit returns the reason why the log currently does not accept so many bytes, or nil.
func (w *Writer) admit(bytes int64) error {
	s := w.options.Server
	if w.closed.Load() || s.Context().Err() != nil {
		return server.ErrClosed
	}
	if err := s.Err(); err != nil {
		return err
	}
	if w.options.Space != nil {
		return w.options.Space.Check(bytes)
	}
	return nil
}

// gather adds all records to the batch to be committed next, and starts commit.
func (w *Writer) gather(records []Record, bytes int) (*batch, error) {
	limit := server.MaxPayload
	if session := w.options.Server.Current(); session != nil {
		limit = int(session.Conn.MaxPayload())
	}
	limit -= layout.Overhead
	for i := range records {
		if layout.RecordSize(len(records[i].Data))+1 > limit {
			return nil, fmt.Errorf("%w: %d bytes, the limit is %d", server.ErrTooLarge, len(records[i].Data), limit)
		}
	}

	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting+bytes > maxWaiting {
		return nil, fmt.Errorf("%w: too many bytes wait to be written", server.ErrUnavailable)
	}
	if q := w.options.Quota; q != nil {
		if err := q.reserve(int64(bytes)); err != nil {
			return nil, err
		}
	}
	var b *batch
	if n := len(w.batches); n > 0 {
		b = w.batches[n-1]
	}
	if b == nil || len(b.segments)+len(records) > maxMessages || b.bytes+bytes > maxBatch {
		b = &batch{started: time.Now(), open: map[string]*segment{}, done: make(chan struct{})}
		w.batches = append(w.batches, b)
	}
	for i := range records {
		b.add(&records[i], min(limit, maxSegment))
	}
	b.appends++
	b.bytes += bytes
	w.waiting += bytes
	if w.gathered != nil && (b.appends >= w.wanted || len(w.batches) > 1) {
		close(w.gathered)
		w.gathered = nil
	}
	if !w.committing {
		w.committing = true
		go w.commit()
	}
	return b, nil
}

// add appends a record to the open segment of its queue, or to a new one.
func (b *batch) add(r *Record, limit int) {
	b.records++
	size := layout.RecordSize(len(r.Data))
	s := b.open[r.Queue]
	if r.Alone || s == nil || s.records == maxRecords || len(s.data)+size > limit {
		s = segments.Get().(*segment)
		s.queue = r.Queue
		b.segments = append(b.segments, s)
		// Records after one that is alone must not be stored before it.
		b.open[r.Queue] = s
		if r.Alone {
			delete(b.open, r.Queue)
		}
	}
	s.data = layout.AppendRecord(s.data, r.Data)
	s.records++
}

// maxBuffer is the size of data from which a segment is not used for another batch: most segments are much smaller.
const maxBuffer = 1 << 20

// segments has empty segments with the memory of their earlier data.
var segments = sync.Pool{New: func() any { return new(segment) }}

// free makes the memory of a segment available for others.
func (s *segment) free() {
	if cap(s.data) <= maxBuffer {
		*s = segment{data: s.data[:0]}
		segments.Put(s)
	}
}

// compress compresses the segments of several records.
func (b *batch) compress() {
	for _, s := range b.segments {
		if s.records == 1 {
			continue
		}
		spare := segments.Get().(*segment)
		var smaller bool
		if spare.data, smaller = layout.Compress(spare.data, s.data); smaller {
			s.data, spare.data = spare.data, s.data
		}
		spare.free()
	}
}

// free makes the memory of a batch that was written available for others, unless the client library may repeat a failed attempt.
func (b *batch) free() {
	if b.attempts > 1 {
		return
	}
	for _, s := range b.segments {
		s.free()
	}
	b.segments, b.open = nil, nil
}

// commit writes one batch after the other until none is left. It runs once per stream at a time.
func (w *Writer) commit() {
	m := w.options.Metrics
	for {
		w.mu.Lock()
		if len(w.batches) == 0 {
			w.committing, w.current = false, nil
			w.batches = nil
			w.disk.close()
			w.mu.Unlock()
			return
		}
		b := w.batches[0]
		w.current, w.batches = b, w.batches[1:]
		w.waiting -= b.bytes
		w.mu.Unlock()

		started := time.Now()
		if w.options.Compress {
			b.compress()
		}
		if err := w.write(b); err != nil {
			m.Failures.Inc()
			b.err = w.failed(err)
		} else {
			m.Commits.Inc()
			m.Segments.Add(float64(len(b.segments)))
			m.Records.Add(float64(b.records))
			b.free()
		}
		if q := w.options.Quota; q != nil {
			q.settle(int64(b.bytes))
		}
		close(b.done)
		took := time.Since(started)
		if b.err == nil {
			w.cache.wrote(b.bytes)
		}
		w.pause(b, took)
	}
}

// pause waits for twice the duration of a commit of several appends, whose callers may append again at once: then they share
// the next commit too, instead of one commit for the first of them alone. In a cluster each commit costs syncs on all servers,
// which other streams wait for too.
func (w *Writer) pause(b *batch, took time.Duration) {
	if b.appends >= 2 && w.options.Server.Clustered() {
		w.gatherFor(min(2*took, maxPause), b.appends)
	}
}

// gatherFor waits for a time, but only until the next batch is full, or has as many appends as the last one had. After a batch of few
// appends it waits for the whole time: senders that are held back because they share processors with others are few.
func (w *Writer) gatherFor(limit time.Duration, appends int) {
	w.mu.Lock()
	if n := len(w.batches); n > 1 || n == 1 && appends > few && w.batches[0].appends >= appends {
		w.mu.Unlock()
		return
	}
	gathered := make(chan struct{})
	if appends > few {
		w.wanted, w.gathered = appends, gathered
	}
	w.mu.Unlock()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-gathered:
	case <-timer.C:
		w.mu.Lock()
		w.gathered = nil
		w.mu.Unlock()
	}
}

// write stores a batch, and retries for a while if the server is unavailable.
func (w *Writer) write(b *batch) error {
	limit := retryFor
	if w.options.Server.Clustered() {
		limit = clusterRetryFor
	}
	for {
		err := w.admit(0)
		if err == nil {
			err = w.writeOnce(b.segments)
		}
		b.attempts++
		if err == nil || !errors.Is(err, server.ErrUnavailable) || time.Since(b.started) > limit {
			return err
		}
		select {
		case <-time.After(retryInterval):
		case <-w.options.Server.Context().Done():
			return server.ErrClosed
		}
	}
}
