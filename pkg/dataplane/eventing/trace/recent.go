package trace

import (
	"context"
	"os"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// maxRecentBlocks bounds the blocks that Recent reads.
const maxRecentBlocks = 8

// Recent returns acceptances of a stream, the newest first, at most max. It reads only the last blocks of the segment that is
// being written, of this replica. It does not wait for records in the queue, so the acceptances of the last moments may be missing.
func (s *Store) Recent(ctx context.Context, stream eventing.Key, uid types.UID, max int) (recent []Record) {
	if s == nil {
		return nil
	}
	known := s.find(stream.Namespace)
	if known == nil {
		return nil
	}
	path, offsets := known.lastBlocks(maxRecentBlocks)
	if len(offsets) == 0 {
		return nil
	}
	file, err := os.Open(path + dataSuffix)
	if err != nil {
		return nil
	}
	defer file.Close()
	for _, offset := range offsets {
		if ctx.Err() != nil || len(recent) >= max {
			break
		}
		records, _, err := readBlock(file, int64(offset))
		if err != nil {
			continue
		}
		var block []Record
		eachRecord(records, func(record []byte) bool {
			h, err := decodeHead(record)
			if err != nil || h.kind != kindAcceptance || string(h.uid) != string(uid) || string(h.name) != stream.Name || kinds[h.stream] != stream.Kind {
				return true
			}
			if r, err := h.record(stream.Namespace); err == nil {
				block = append(block, r)
			}
			return true
		})
		slices.Reverse(block)
		recent = append(recent, block...)
	}
	return recent[:min(len(recent), max)]
}

// lastBlocks returns the path of the segment that is being written and the offsets of its last blocks, the newest first.
func (t *tenant) lastBlocks(limit int) (path string, offsets []uint32) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.open == nil {
		return "", nil
	}
	for _, e := range slices.Backward(t.open.indexed) {
		if len(offsets) > 0 && offsets[len(offsets)-1] == e.offset {
			continue
		}
		if len(offsets) == limit {
			break
		}
		offsets = append(offsets, e.offset)
	}
	return t.open.path, offsets
}
