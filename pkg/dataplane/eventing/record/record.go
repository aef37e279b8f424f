// Package record encodes the records of the event log: a header, followed by the event.
package record

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// version is the first byte of a record in the event log.
	version = 1
	// flagUnanswered is the flag of Header.Unanswered.
	flagUnanswered = 1
	// HeaderBytes is the maximum size of a header without its targets.
	HeaderBytes = 48
	// TargetBytes is the size of a target that is a UUID.
	TargetBytes = 37
)

// Header is the state of one or several deliveries of an event.
type Header struct {
	// ID distinguishes records of a queue in memory. It is random.
	ID uint64
	// Accepted is the time at which the stream accepted the event.
	Accepted time.Time
	// Attempts is the number of attempts to send the event to the endpoint of the record's queue.
	Attempts int
	// Due is the time of the next attempt; zero means immediately.
	Due time.Time
	// Unanswered is true if the endpoint did not answer the previous attempt.
	Unanswered bool
	// Targets are the consumers of the event. It is empty in the queue of one consumer.
	Targets []types.UID
}

// ErrVersion is returned for data that is not a record of this version.
var ErrVersion = errors.New("unknown or damaged event log record")

// NewID returns an ID for a record.
func NewID() uint64 { return rand.Uint64() }

// Append appends the encoded header to buf. The encoded event must follow.
func (h *Header) Append(buf []byte) []byte {
	buf = append(buf, version, 0)
	if h.Unanswered {
		buf[len(buf)-1] = flagUnanswered
	}
	buf = binary.LittleEndian.AppendUint64(buf, h.ID)
	buf = binary.AppendVarint(buf, h.Accepted.UnixNano())
	buf = binary.AppendUvarint(buf, uint64(h.Attempts))
	due := int64(0)
	if !h.Due.IsZero() {
		due = h.Due.UnixNano()
	}
	buf = binary.AppendVarint(buf, due)
	buf = binary.AppendUvarint(buf, uint64(len(h.Targets)))
	for _, target := range h.Targets {
		buf = binary.AppendUvarint(buf, uint64(len(target)))
		buf = append(buf, target...)
	}
	return buf
}

// Parse decodes the header of a record and returns the encoded event, which shares memory with data.
func (h *Header) Parse(data []byte) (event []byte, err error) {
	r := reader{data: data}
	if r.byte() != version {
		return nil, ErrVersion
	}
	h.Unanswered = r.byte()&flagUnanswered != 0
	h.ID = r.uint64()
	h.Accepted = time.Unix(0, r.varint())
	h.Attempts = int(r.uvarint())
	if due := r.varint(); due != 0 {
		h.Due = time.Unix(0, due)
	}
	// Each target has at least one byte, so a count beyond the remaining bytes is invalid.
	n := r.uvarint()
	if r.failed || n > uint64(len(r.data)) {
		return nil, ErrVersion
	}
	h.Targets = make([]types.UID, 0, n)
	for range n {
		h.Targets = append(h.Targets, types.UID(r.bytes()))
	}
	if r.failed {
		return nil, ErrVersion
	}
	return r.data, nil
}

// reader consumes values from data. After a missing value, all values are zero.
type reader struct {
	data   []byte
	failed bool
}

func (r *reader) next(n uint64) []byte {
	if r.failed || n > uint64(len(r.data)) {
		r.failed = true
		return nil
	}
	value := r.data[:n]
	r.data = r.data[n:]
	return value
}

func (r *reader) byte() byte {
	if b := r.next(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) uint64() uint64 {
	if b := r.next(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (r *reader) uvarint() uint64 {
	value, n := binary.Uvarint(r.data)
	if n <= 0 {
		r.failed = true
		return 0
	}
	r.data = r.data[n:]
	return value
}

func (r *reader) varint() int64 {
	value, n := binary.Varint(r.data)
	if n <= 0 {
		r.failed = true
		return 0
	}
	r.data = r.data[n:]
	return value
}

func (r *reader) bytes() []byte { return r.next(r.uvarint()) }
