package broker

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// recordVersion is the first byte of a record in the event log.
const recordVersion = 1

// recordAway is the flag of header.away.
const recordAway = 1

// header is what the log keeps with an event: on its way to which consumers it is, and how far.
type header struct {
	// id tells a record from others in memory. It is random.
	id uint64
	// accepted is when the stream accepted the event.
	accepted time.Time
	// attempts is how often the event was sent to the consumer, to the endpoint that the record's queue is for.
	attempts int
	// due is when the next attempt is to be made; zero means at once.
	due time.Time
	// away tells that there was no answer to the attempt before.
	away bool
	// targets are the consumers that the event is for. In a consumer's own queue there is just that one, and it is
	// not listed.
	targets []types.UID
}

var errRecord = errors.New("the record is not of a form that this version reads")

// newID returns an id for a record.
func newID() uint64 { return rand.Uint64() }

// append appends the header's form in the log to buf; that of the event follows.
func (h *header) append(buf []byte) []byte {
	buf = append(buf, recordVersion, 0)
	if h.away {
		buf[len(buf)-1] = recordAway
	}
	buf = binary.LittleEndian.AppendUint64(buf, h.id)
	buf = binary.AppendVarint(buf, h.accepted.UnixNano())
	buf = binary.AppendUvarint(buf, uint64(h.attempts))
	due := int64(0)
	if !h.due.IsZero() {
		due = h.due.UnixNano()
	}
	buf = binary.AppendVarint(buf, due)
	buf = binary.AppendUvarint(buf, uint64(len(h.targets)))
	for _, target := range h.targets {
		buf = binary.AppendUvarint(buf, uint64(len(target)))
		buf = append(buf, target...)
	}
	return buf
}

// parse reads a header and returns the event's form behind it, which shares memory with data.
func (h *header) parse(data []byte) (event []byte, err error) {
	r := reader{data: data}
	if r.byte() != recordVersion {
		return nil, errRecord
	}
	h.away = r.byte()&recordAway != 0
	h.id = r.uint64()
	h.accepted = time.Unix(0, r.varint())
	h.attempts = int(r.uvarint())
	if due := r.varint(); due != 0 {
		h.due = time.Unix(0, due)
	}
	// Each target takes a byte at least, so a number beyond what is left is no number of targets.
	n := r.uvarint()
	if r.failed || n > uint64(len(r.data)) {
		return nil, errRecord
	}
	h.targets = make([]types.UID, 0, n)
	for range n {
		h.targets = append(h.targets, types.UID(r.bytes()))
	}
	if r.failed {
		return nil, errRecord
	}
	return r.data, nil
}

// reader takes values off data. Once one is missing, all are zero.
type reader struct {
	data   []byte
	failed bool
}

func (r *reader) take(n uint64) []byte {
	if r.failed || n > uint64(len(r.data)) {
		r.failed = true
		return nil
	}
	taken := r.data[:n]
	r.data = r.data[n:]
	return taken
}

func (r *reader) byte() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) uint64() uint64 {
	if b := r.take(8); b != nil {
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

func (r *reader) bytes() []byte { return r.take(r.uvarint()) }
