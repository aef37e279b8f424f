package commit

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/server"
)

// quotaFreshness is the time between queries of the held bytes, which take longer the more streams exist: some 0.1 ms for
// 1,000.
const quotaFreshness = 20 * time.Millisecond

// Quota limits the bytes that the streams of the embedded server hold together, on disk or in memory. The server's own
// limit would reserve the maximum of each stream instead of counting its bytes.
type Quota struct {
	// Limit is the maximum number of bytes.
	Limit int64
	// Held returns the current number of bytes.
	Held func() int64

	queried atomic.Int64 // time of the last call of Held, in nanoseconds
	// known is the result of that call, and the bytes reserved since.
	known atomic.Int64
	// reserved is not written yet.
	reserved atomic.Int64
}

// reserve counts bytes that are about to be written, until settle is called. If they exceed the limit, the error wraps
// ErrFull.
func (q *Quota) reserve(bytes int64) error {
	now, queried := time.Now().UnixNano(), q.queried.Load()
	if now-queried >= int64(quotaFreshness) && q.queried.CompareAndSwap(queried, now) {
		// Bytes written between the two count twice, until the next query.
		reserved := q.reserved.Load()
		q.known.Store(q.Held() + reserved)
	}
	if known := q.known.Add(bytes); known > q.Limit {
		q.known.Add(-bytes)
		return fmt.Errorf("%w: %d bytes exceed the limit: %d of %d are held", server.ErrFull, bytes, known-bytes, q.Limit)
	}
	q.reserved.Add(bytes)
	return nil
}

// settle ends the reservation of bytes that are written, or will not be.
func (q *Quota) settle(bytes int64) { q.reserved.Add(-bytes) }

// Reserved returns the number of bytes that are about to be written.
func (q *Quota) Reserved() int64 { return q.reserved.Load() }
