package trace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"
)

const (
	// DefaultRetention is the default of Options.Retention.
	DefaultRetention = time.Hour
	// DefaultMaxBytes is the default of Options.MaxBytes.
	DefaultMaxBytes = 1 << 30

	// writeInterval is the least time between two writes: what a kill of the process may lose.
	writeInterval = 50 * time.Millisecond
	// maintainInterval is the time between two searches for segments that are too old or too many.
	maintainInterval = time.Second
	// A write is followed by a pause of pauseFactor times its duration, longestPause at most, so that many small writes leave processor and disk
	// to others. The pause ends when more than pressing bytes wait.
	pauseFactor  = 10
	longestPause = time.Second
	pressing     = maxQueued / 8
	// maxQueued bounds the records that wait to be written, in bytes, and queueShare those of a namespace. Records of successes use at
	// most three quarters of either, so that failures find room.
	maxQueued  = 16 << 20
	queueShare = maxQueued / 2
	// maxRecord bounds a record: attributes, consumers, and a dozen texts.
	maxRecord = 1 << 20
	// maxNamespaces bounds the namespaces with records. Records of others are dropped.
	maxNamespaces = 10000
	// A segment is full after maxSegment bytes or less with a small Options.MaxBytes, after maxEntries entries of its index, or after a
	// retentionParts-th of the retention.
	minSegment, maxSegment = 64 << 10, 16 << 20
	maxEntries             = 1 << 18
	retentionParts         = 8
	// maxOpenEntries bounds the entries of all segments that are not full, which memory holds.
	maxOpenEntries = 1 << 20
	// freeBytes is the space of the filesystem that is left to others, or an eighth of it if that is less.
	freeBytes = 256 << 20
)

// Options configure a Store.
type Options struct {
	// Dir is the directory of the records. It is created.
	Dir string
	// MaxBytes bounds the size of all records on disk. 0 means DefaultMaxBytes.
	MaxBytes int64
	// Retention is the time for which records are kept, as long as there is space. 0 means DefaultRetention.
	Retention time.Duration
	// Clock tells the times at which records are written.
	Clock  clock.PassiveClock
	Logger logr.Logger
}

// Store keeps the records of this replica. Its methods may be called concurrently. A nil Store records nothing and finds nothing.
type Store struct {
	metrics
	options Options
	// segment is the size of a full segment in bytes.
	segment int64
	// queued is the size of the records that wait in all namespaces.
	queued atomic.Int64
	// mu guards tenants and dirty. tenants are the namespaces with records, dirty those with records that wait.
	mu      sync.RWMutex
	tenants map[string]*tenant
	dirty   []*tenant

	// wake tells the writer of records, flush asks it for a write and closes the channel afterwards.
	wake  chan struct{}
	flush chan chan struct{}
	// closing ends the writer, which closes closed.
	closing, closed chan struct{}
	once            sync.Once
	// failing is true after a write failed, so that repeated failures are logged once. Only the writer uses it, and space.
	failing bool
}

// tenant has the records of a namespace.
type tenant struct {
	namespace string
	dropped   atomic.Int64
	evicted   atomic.Int64

	queue queue

	// mu guards the fields below, which the writer changes.
	mu sync.RWMutex
	// segments are full, the oldest first. open is written, or nil.
	segments []*segment
	open     *growing
	// bytes is the size of all segments.
	bytes int64
}

// queue has the records that wait to be written.
type queue struct {
	mu sync.Mutex
	// batch has the records, nil without any.
	batch *batch
	// gone is true once the namespace has no records anymore, and another tenant may replace this one.
	gone bool
}

// batch are records of a namespace that are written together. It is reused with its memory.
type batch struct {
	// records are encoded, each preceded by its length; marks describe them.
	records []byte
	marks   []mark
}

var batches = sync.Pool{New: func() any { return &batch{} }}

// free returns the batch to the pool. Large ones are left to the garbage collector.
func (b *batch) free() {
	if cap(b.records) <= keptBuffer {
		b.records, b.marks = b.records[:0], b.marks[:0]
		batches.Put(b)
	}
}

// mark is the end of a record in the queue, with the hashes by which it is found; trace is 0 without a trace ID.
type mark struct {
	end       int
	id, trace uint64
}

// growing is a segment that is written.
type growing struct {
	segment
	indexed []entry
}

// Open returns the Store in a directory. It reads what earlier processes wrote in the background; Find waits for that. Close ends it.
func Open(options Options) (*Store, error) {
	if options.MaxBytes == 0 {
		options.MaxBytes = DefaultMaxBytes
	}
	if options.Retention == 0 {
		options.Retention = DefaultRetention
	}
	if err := os.MkdirAll(options.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("create directory of trace records: %w", err)
	}
	s := &Store{
		options: options, tenants: map[string]*tenant{}, segment: min(max(options.MaxBytes/32, minSegment), maxSegment),
		wake: make(chan struct{}, 1), flush: make(chan chan struct{}), closing: make(chan struct{}), closed: make(chan struct{}),
	}
	s.metrics = metrics{store: s}
	go s.run()
	return s, nil
}

// Close writes the records that wait, and ends the Store.
func (s *Store) Close() {
	if s == nil {
		return
	}
	s.once.Do(func() { close(s.closing) })
	<-s.closed
}

// Add adds a record to the queue of its namespace. It never waits for the disk. While the queue is full, the record is dropped and counted.
func (s *Store) Add(r *Record) {
	if s == nil {
		return
	}
	for {
		t := s.tenant(r.Stream.Namespace)
		if t == nil {
			s.homeless.Add(1)
			return
		}
		switch added, first, gone := t.queue.add(r, &s.queued); {
		case gone:
			s.forget(t)
		case !added:
			t.dropped.Add(1)
			return
		case first:
			s.mu.Lock()
			s.dirty = append(s.dirty, t)
			s.mu.Unlock()
			select {
			case s.wake <- struct{}{}:
			default:
			}
			return
		default:
			return
		}
	}
}

// tenant returns the tenant of a namespace, or nil if there are too many.
func (s *Store) tenant(namespace string) *tenant {
	if found := s.find(namespace); found != nil {
		return found
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if found := s.tenants[namespace]; found != nil || len(s.tenants) >= maxNamespaces {
		return found
	}
	// The copy keeps no record alive.
	t := &tenant{namespace: strings.Clone(namespace)}
	s.tenants[t.namespace] = t
	return t
}

// find returns the tenant of a namespace, or nil if it has no records.
func (s *Store) find(namespace string) *tenant {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.tenants[namespace]
}

// forget removes a tenant without records.
func (s *Store) forget(t *tenant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tenants[t.namespace] == t {
		delete(s.tenants, t.namespace)
	}
}

// add adds a record unless the queue is full. first is true if it was empty.
func (q *queue) add(r *Record, queued *atomic.Int64) (added, first, gone bool) {
	limit := 1.0
	if r.Attempt == nil || !r.Attempt.Failed() {
		limit = 0.75
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.gone {
		return false, false, true
	}
	if q.batch == nil {
		q.batch = batches.Get().(*batch)
	}
	b := q.batch
	before := len(b.records)
	if float64(before) > limit*queueShare || float64(queued.Load()) > limit*maxQueued {
		return false, false, false
	}
	// The length takes 3 bytes, whatever it is.
	b.records = append(b.records, 0, 0, 0)
	b.records = appendRecord(b.records, r)
	size := len(b.records) - before - 3
	if size > maxRecord {
		b.records = b.records[:before]
		return false, false, false
	}
	b.records[before], b.records[before+1], b.records[before+2] = byte(size)|0x80, byte(size>>7)|0x80, byte(size>>14)
	m := mark{end: len(b.records), id: hashID(Cut(r.ID))}
	if r.Acceptance != nil {
		if id, ok := parseTraceID(r.Acceptance.TraceID); ok {
			m.trace = hashTraceID(id[:])
		}
	}
	b.marks = append(b.marks, m)
	queued.Add(int64(size) + 3)
	return true, len(b.marks) == 1, false
}

// take removes and returns the records of the queue.
func (q *queue) take() *batch {
	q.mu.Lock()
	defer q.mu.Unlock()
	taken := q.batch
	q.batch = nil
	return taken
}

// run writes records until Close.
func (s *Store) run() {
	defer close(s.closed)
	s.load()
	maintain := time.NewTicker(maintainInterval)
	defer maintain.Stop()
	w := writer{store: s}
	for {
		select {
		case <-s.wake:
			start := time.Now()
			w.write()
			w.pause(time.Now().Add(min(pauseFactor*time.Since(start), longestPause)))
		case done := <-s.flush:
			w.write()
			close(done)
		case <-maintain.C:
			s.maintain()
		case <-s.closing:
			w.write()
			return
		}
	}
}

// written returns once all records that were added before have been written.
func (s *Store) written(ctx context.Context) error {
	done := make(chan struct{})
	for request := s.flush; ; request = nil {
		select {
		case request <- done:
		case <-done:
			return nil
		case <-s.closed:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// writer writes the records of all queues. Its buffer is reused.
type writer struct {
	store  *Store
	blocks []byte
}

// pause lets records arrive that are written together: for writeInterval, and then until a time as long as few records wait.
func (w *writer) pause(until time.Time) {
	ticker := time.NewTicker(writeInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			if !time.Now().Before(until) || w.store.queued.Load() > pressing {
				return
			}
		case done := <-w.store.flush:
			w.write()
			close(done)
			return
		case <-w.store.closing:
			return
		}
	}
}

// keptBuffer bounds the buffers that are kept for the next records: those of a namespace under load, which wait until they press.
const keptBuffer = 2 * pressing

// write writes the records of all queues.
func (w *writer) write() {
	s := w.store
	s.mu.Lock()
	dirty := s.dirty
	s.dirty = nil
	s.mu.Unlock()
	for _, t := range dirty {
		b := t.queue.take()
		s.queued.Add(-int64(len(b.records)))
		if err := w.append(t, b.records, b.marks); err != nil {
			t.dropped.Add(int64(len(b.marks)))
			if !s.failing {
				s.options.Logger.Error(err, "Failed to write trace records; dropping them", "namespace", t.namespace)
			}
			s.failing = true
		} else {
			s.failing = false
		}
		b.free()
	}
	if len(dirty) > 0 {
		s.evict()
	}
}

// append writes records to the open segment of a namespace, in blocks.
func (w *writer) append(t *tenant, records []byte, marks []mark) error {
	s := w.store
	now := s.options.Clock.Now()
	if o := t.open; o != nil && s.aged(o, now) {
		t.mu.Lock()
		s.report(s.fill(t))
		t.mu.Unlock()
	}
	o := t.open
	if o == nil {
		dir := filepath.Join(s.options.Dir, t.namespace)
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("create directory of trace records: %w", err)
		}
		o = &growing{segment: segment{path: filepath.Join(dir, segmentName(now)), first: now}}
	}
	w.blocks = w.blocks[:0]
	indexed := o.indexed
	for start, i := 0, 0; i < len(marks); {
		offset := uint32(o.size + int64(len(w.blocks)))
		end := start
		for first := i; i < len(marks) && (i == first || marks[i].end-start <= blockBytes); i++ {
			end = marks[i].end
			indexed = append(indexed, entry{marks[i].id, offset})
			if marks[i].trace != 0 {
				indexed = append(indexed, entry{marks[i].trace, offset})
			}
		}
		w.blocks = appendBlock(w.blocks, records[start:end])
		start = end
	}
	if err := appendFile(o.path+dataSuffix, o.size, w.blocks); err != nil {
		return err
	}
	s.recorded.Add(int64(len(marks)))
	t.mu.Lock()
	defer t.mu.Unlock()
	s.entries.Add(int64(len(indexed) - len(o.indexed)))
	o.indexed, o.last, o.records = indexed, now, o.records+int64(len(marks))
	o.size += int64(len(w.blocks))
	t.open = o
	t.bytes += int64(len(w.blocks))
	if cap(w.blocks) > keptBuffer {
		w.blocks = nil
	}
	if o.size >= s.segment || len(o.indexed) >= maxEntries {
		s.report(s.fill(t))
	}
	return nil
}

// aged reports whether a segment is full because of its age, so that its first records are not kept for much longer than others.
func (s *Store) aged(o *growing, now time.Time) bool {
	return now.Sub(o.first) >= s.options.Retention/retentionParts
}

// appendFile appends data to a file of a known size. What a failed write left behind the size is overwritten.
func appendFile(path string, size int64, data []byte) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open trace records: %w", err)
	}
	_, err = file.WriteAt(data, size)
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("write trace records: %w", err)
	}
	return nil
}

// fill ends the open segment of a namespace, whose mu is held. If its index cannot be written, the segment is deleted.
func (s *Store) fill(t *tenant) error {
	o := t.open
	if o == nil {
		return nil
	}
	t.open = nil
	s.entries.Add(-int64(len(o.indexed)))
	t.bytes -= o.size
	full := o.segment
	if err := full.writeIndex(o.indexed); err != nil {
		t.evicted.Add(o.records)
		return errors.Join(err, full.remove())
	}
	t.segments = append(t.segments, &full)
	t.bytes += full.size
	return nil
}

// maintain deletes segments that are too old, and forgets namespaces without any.
func (s *Store) maintain() {
	now := s.options.Clock.Now()
	oldest := now.Add(-s.options.Retention)
	for _, t := range s.all() {
		s.maintainTenant(t, now, oldest)
	}
	s.evict()
}

// maintainTenant is maintain for one namespace.
func (s *Store) maintainTenant(t *tenant, now, oldest time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if o := t.open; o != nil && s.aged(o, now) {
		s.report(s.fill(t))
	}
	for len(t.segments) > 0 && t.segments[0].last.Before(oldest) {
		s.report(t.removeOldest())
	}
	if t.open != nil || len(t.segments) > 0 {
		return
	}
	t.queue.mu.Lock()
	t.queue.gone = t.queue.batch == nil || len(t.queue.batch.marks) == 0
	gone := t.queue.gone
	t.queue.mu.Unlock()
	if gone {
		// A directory with other files stays.
		os.Remove(filepath.Join(s.options.Dir, t.namespace))
		s.forget(t)
	}
}

// removeOldest deletes the oldest full segment. mu is held.
func (t *tenant) removeOldest() error {
	oldest := t.segments[0]
	t.segments = slices.Delete(t.segments, 0, 1)
	t.bytes -= oldest.size
	return oldest.remove()
}

// evict deletes segments while all of them are too large, or the filesystem is nearly full: the oldest one of the namespace that has
// most. So a namespace that has less than an equal share keeps its records, whatever others record. It also ends open segments while
// their indexes are too large.
func (s *Store) evict() {
	for s.entries.Load() > maxOpenEntries {
		largest := s.largest(func(t *tenant) int64 {
			if t.open == nil {
				return 0
			}
			return int64(len(t.open.indexed))
		})
		if largest == nil {
			break
		}
		largest.mu.Lock()
		s.report(s.fill(largest))
		largest.mu.Unlock()
	}
	total := s.bytes()
	for limit := s.limit(total); total > limit; total = s.bytes() {
		largest := s.largest(func(t *tenant) int64 { return t.bytes })
		if largest == nil {
			break
		}
		largest.mu.Lock()
		if len(largest.segments) == 0 {
			s.report(s.fill(largest))
		}
		if len(largest.segments) > 0 {
			largest.evicted.Add(largest.segments[0].records)
			s.report(largest.removeOldest())
		}
		largest.mu.Unlock()
	}
}

// limit returns the size that all segments may have, if they have a total now.
func (s *Store) limit(total int64) int64 {
	var fs unix.Statfs_t
	if err := unix.Statfs(s.options.Dir, &fs); err != nil {
		return s.options.MaxBytes
	}
	free, size := int64(fs.Bavail)*fs.Bsize, int64(fs.Blocks)*fs.Bsize
	return min(s.options.MaxBytes, max(total+free-min(freeBytes, size/8), 0))
}

// bytes returns the size of all segments. Only the writer may call it.
func (s *Store) bytes() (total int64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, t := range s.tenants {
		total += t.bytes
	}
	return total
}

// largest returns the tenant with the largest size, or nil if all have 0. Only the writer may call it.
func (s *Store) largest(size func(*tenant) int64) (largest *tenant) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	most := int64(0)
	for _, t := range s.tenants {
		if n := size(t); n > most {
			largest, most = t, n
		}
	}
	return largest
}

// all returns the tenants.
func (s *Store) all() []*tenant {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Collect(maps.Values(s.tenants))
}

// report logs an error, which affects trace records only.
func (s *Store) report(err error) {
	if err != nil {
		s.options.Logger.Error(err, "Failed to maintain trace records")
	}
}

// load reads the segments that earlier processes wrote.
func (s *Store) load() {
	namespaces, err := os.ReadDir(s.options.Dir)
	s.report(err)
	for _, namespace := range namespaces {
		if !namespace.IsDir() {
			continue
		}
		t := s.tenant(namespace.Name())
		if t == nil {
			s.report(os.RemoveAll(filepath.Join(s.options.Dir, namespace.Name())))
			continue
		}
		s.loadTenant(t)
	}
	s.evict()
}

func (s *Store) loadTenant(t *tenant) {
	dir := filepath.Join(s.options.Dir, t.namespace)
	files, err := os.ReadDir(dir)
	s.report(err)
	found := map[string]bool{}
	t.mu.Lock()
	defer t.mu.Unlock()
	// The names, and so the files, are in the order of time.
	for _, file := range files {
		name, ok := segmentOf(file.Name())
		if !ok {
			continue
		}
		found[name] = true
		path := filepath.Join(dir, name)
		full, err := loadSegment(path)
		if err != nil {
			if full, err = recoverSegment(path); err != nil {
				s.report(errors.Join(err, (&segment{path: path}).remove()))
				continue
			}
		}
		if full != nil {
			t.segments = append(t.segments, full)
			t.bytes += full.size
		}
	}
	for _, file := range files {
		name := file.Name()
		if owner := name[:len(name)-len(filepath.Ext(name))]; !found[owner] || filepath.Ext(name) == newSuffix {
			s.report(os.Remove(filepath.Join(dir, name)))
		}
	}
}
