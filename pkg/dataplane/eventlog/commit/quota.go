package eventlog

import (
	"fmt"
	"sync/atomic"
	"time"
)

const (
	// maxMemory bounds what the embedded server's streams in memory hold in all, in bytes.
	maxMemory = 1 << 30
	// streamShare is the part of what the embedded store may take that one stream may.
	streamShare = 4
	// quotaFreshness is how often the server is asked for what it holds, which takes longer the more streams there are:
	// some 0.1 ms for 1,000.
	quotaFreshness = 20 * time.Millisecond
)

// quota bounds what the embedded server's streams hold in all, on disk or in memory. Given a bound, the server would
// reserve what each stream may hold instead of counting what it does.
type quota struct {
	limit int64
	// holds returns how many bytes there are.
	holds func() int64

	asked atomic.Int64 // when holds was, in nanoseconds
	// known is what there was then, and was taken since.
	known atomic.Int64
	// underway was taken and is not written yet.
	underway atomic.Int64
}

// take takes bytes that are to be written. Without room for them, its error wraps ErrFull.
func (q *quota) take(bytes int64) error {
	now, asked := time.Now().UnixNano(), q.asked.Load()
	if now-asked >= int64(quotaFreshness) && q.asked.CompareAndSwap(asked, now) {
		// What is written between the two counts twice, until the next time.
		underway := q.underway.Load()
		q.known.Store(q.holds() + underway)
	}
	if known := q.known.Add(bytes); known > q.limit {
		q.known.Add(-bytes)
		return fmt.Errorf("%w: there is no room for %d bytes besides %d of at most %d", ErrFull, bytes, known-bytes, q.limit)
	}
	q.underway.Add(bytes)
	return nil
}

// written tells that bytes that were taken are written, or will not be.
func (q *quota) written(bytes int64) { q.underway.Add(-bytes) }

// setQuotas bounds what the embedded server holds. That of the disk is nil if there is no bound.
func (l *Log) setQuotas() {
	l.memory = &quota{limit: maxMemory, holds: func() int64 { memory, _ := l.server.Usage(); return memory }}
	if l.opts.MaxBytes > 0 {
		l.disk = &quota{limit: l.opts.MaxBytes, holds: func() int64 { _, disk := l.server.Usage(); return disk }}
	}
}

// quota is what bounds the stream together with others, nil if nothing does.
func (s *Stream) quota() *quota {
	if s.config.Memory {
		return s.log.memory
	}
	return s.log.disk
}
