package trace

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"
	"k8s.io/apimachinery/pkg/types"

	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

const (
	// MaxFound bounds the records that Find returns, and maxFoundBytes their size before they are decoded.
	MaxFound      = 2000
	maxFoundBytes = 4 << 20
	// maxBlocks bounds the blocks that Find reads.
	maxBlocks = 1000
	// maxSkew is how much later than a record was written its event may have been accepted, by the clock of another replica.
	maxSkew = time.Minute
)

// Query selects records of a namespace. ID or TraceID is set.
type Query struct {
	Namespace string
	// ID is the ID of an event, Source its source. An empty Source selects all sources.
	ID, Source string
	// TraceID selects the acceptances of a W3C trace, in 32 hexadecimal digits. Attempts are found by the ID of their event.
	TraceID string
	// Stream and StreamUID select the records of a Broker or Channel. Zero values select all.
	Stream    eventing.Key
	StreamUID types.UID
	// Accepted selects the records of the acceptance at that time, unless it is zero.
	Accepted time.Time
}

var errQuery = errors.New("a query of trace records needs an ID or a valid trace ID")

// Find returns the records of a query that were added before, of this replica, in the order in which they were written. If there are too
// many, it returns the last ones, at most MaxFound, and more is true.
func (s *Store) Find(ctx context.Context, q Query) (found []Record, more bool, err error) {
	traceID, traced := parseTraceID(q.TraceID)
	if q.ID == "" && !traced {
		return nil, false, errQuery
	}
	if s == nil {
		return nil, false, nil
	}
	if err := s.written(ctx); err != nil {
		return nil, false, err
	}
	known := s.find(q.Namespace)
	if known == nil {
		return nil, false, nil
	}
	f := finder{query: q, id: []byte(Cut(q.ID)), source: []byte(Cut(q.Source))}
	f.hash = xxhash.Sum64(f.id)
	if q.ID == "" {
		f.traceID = traceID[:]
		f.hash = hashTraceID(f.traceID)
	}
	segments, open, offsets := known.snapshot(f.hash)
	if open != nil {
		f.read(ctx, open, offsets)
	}
	for _, segment := range slices.Backward(segments) {
		if f.more || ctx.Err() != nil {
			break
		}
		if segment.last.Add(maxSkew).Before(q.Accepted) {
			continue
		}
		offsets, more, err := segment.offsets(f.hash, maxBlocks-f.blocks)
		f.more = f.more || more
		if err == nil {
			f.read(ctx, segment, offsets)
		} else if !errors.Is(err, os.ErrNotExist) {
			// Without the damaged segment, the answer is not complete.
			s.report(err)
			f.more = true
		}
	}
	if len(f.found) > MaxFound {
		f.found, f.more = f.found[:MaxFound], true
	}
	slices.Reverse(f.found)
	return f.found, f.more, ctx.Err()
}

// snapshot returns the full segments, and the open one with the offsets of its blocks with a hash, the newest first.
func (t *tenant) snapshot(hash uint64) (segments []*segment, open *segment, offsets []uint32) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.open != nil {
		copied := t.open.segment
		open = &copied
		for _, e := range slices.Backward(t.open.indexed) {
			if e.hash == hash && (len(offsets) == 0 || offsets[len(offsets)-1] != e.offset) {
				offsets = append(offsets, e.offset)
			}
		}
	}
	return slices.Clone(t.segments), open, offsets
}

// finder collects the records of a query, the newest first.
type finder struct {
	query               Query
	hash                uint64
	id, source, traceID []byte
	found               []Record
	more                bool
	// blocks is the number of blocks that were read, bytes the size of the records that were found.
	blocks, bytes int
}

// read reads blocks of a segment, which may have been deleted meanwhile.
func (f *finder) read(ctx context.Context, from *segment, offsets []uint32) {
	if len(offsets) == 0 {
		return
	}
	file, err := os.Open(from.path + dataSuffix)
	if err != nil {
		return
	}
	defer file.Close()
	for _, offset := range offsets {
		if f.blocks++; f.blocks > maxBlocks || len(f.found) >= MaxFound || f.bytes >= maxFoundBytes {
			f.more = true
			return
		}
		if ctx.Err() != nil {
			return
		}
		records, _, err := readBlock(file, int64(offset))
		if err != nil {
			continue
		}
		var block []Record
		eachRecord(records, func(record []byte) bool {
			if r, ok := f.match(record); ok {
				block = append(block, r)
				f.bytes += len(record)
			}
			return true
		})
		slices.Reverse(block)
		f.found = append(f.found, block...)
	}
}

// match decodes a record if it is one of the query.
func (f *finder) match(record []byte) (Record, bool) {
	h, err := decodeHead(record)
	if err != nil {
		return Record{}, false
	}
	q := &f.query
	switch {
	case f.traceID != nil && !bytes.Equal(h.traceID(), f.traceID),
		f.traceID == nil && !bytes.Equal(h.id, f.id),
		len(f.source) > 0 && !bytes.Equal(h.source, f.source),
		q.Stream.Name != "" && (string(h.name) != q.Stream.Name || kinds[h.stream] != q.Stream.Kind),
		q.StreamUID != "" && string(h.uid) != string(q.StreamUID),
		!q.Accepted.IsZero() && !h.accepted.Equal(q.Accepted):
		return Record{}, false
	}
	r, err := h.record(q.Namespace)
	return r, err == nil
}
