// Package archive keeps the events that Brokers accepted, delivered or not, for Brokers that ask for it: so that they can be read again by
// the time of their acceptance.
//
// The archive of a Broker is a retained stream of the event log: durable and replicated as the events are, and readable by all replicas. Events
// of one request are a record; records of concurrent requests share a message and its sync, as in the queues of a Broker. An event is in the archive
// before its sender gets an answer. A Store bounds archives by age and size for each Broker, by size for each namespace, and by the size
// of all: the oldest events are evicted, of the namespaces with most bytes. Evictions are counted.
//
// An archive never rejects an event: while it cannot be written, for example because the disk is full, events are accepted without being
// archived, and counted. An event whose sender got no answer may be in the archive, too, and twice if it was sent again.
package archive

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
)

const (
	// version is the first byte of a record. The number of the first event and the time of acceptance in nanoseconds, 8 bytes each, and the events
	// follow, each preceded by its size in 4 bytes.
	version = 1
	// headerBytes is the size of a record without its events, sizeBytes the size of the size of an event.
	headerBytes, sizeBytes = 1 + 8 + 8, 4
	// recordBytes is the size from which a record gets no more events.
	recordBytes = 1 << 20
)

// header is what a record has besides its events.
type header struct {
	// number is the number of the first event in the archive. Numbers increase; they serve to count events, not to identify them: two replicas
	// that archive at a time may assign the same.
	number   uint64
	accepted time.Time
}

func (h *header) append(data []byte) []byte {
	data = append(data, version)
	data = binary.LittleEndian.AppendUint64(data, h.number)
	return binary.LittleEndian.AppendUint64(data, uint64(h.accepted.UnixNano()))
}

// setNumber sets the number of the first event of a record.
func setNumber(record []byte, number uint64) { binary.LittleEndian.PutUint64(record[1:], number) }

// record is an encoded record.
type record struct {
	data []byte
	// events is the number of events.
	events int
}

// buffers has memory for records up to recordBytes.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// free makes the memory of a buffer that encode returned available for other records.
func free(buffer *[]byte) {
	if cap(*buffer) <= recordBytes {
		buffers.Put(buffer)
	}
}

// encode returns the records of events that were accepted at a time, in a buffer to be freed after their last use. Their numbers are 0.
func encode(accepted time.Time, events []*event.Event) (records []record, buffer *[]byte) {
	size := 0
	for _, e := range events {
		size += headerBytes + sizeBytes + e.Size()
	}
	h := header{accepted: accepted}
	buffer = buffers.Get().(*[]byte)
	data, start, count := slices.Grow((*buffer)[:0], size), 0, 0
	for i, e := range events {
		if count == 0 {
			data = h.append(data)
		}
		at := len(data)
		data = e.Append(append(data, 0, 0, 0, 0))
		binary.LittleEndian.PutUint32(data[at:], uint32(len(data)-at-sizeBytes))
		count++
		if i == len(events)-1 || len(data)-start >= recordBytes {
			records = append(records, record{data[start:len(data):len(data)], count})
			start, count = len(data), 0
		}
	}
	*buffer = data
	return records, buffer
}

var errDamaged = errors.New("unknown or damaged record of an archive")

// parse reads a record. The encoded events share memory with data.
func parse(data []byte) (h header, events [][]byte, err error) {
	if len(data) < headerBytes || data[0] != version {
		return h, nil, errDamaged
	}
	h = header{binary.LittleEndian.Uint64(data[1:]), time.Unix(0, int64(binary.LittleEndian.Uint64(data[9:])))}
	for rest := data[headerBytes:]; len(rest) > 0; {
		if len(rest) < sizeBytes || uint64(binary.LittleEndian.Uint32(rest)) > uint64(len(rest)-sizeBytes) {
			return h, nil, errDamaged
		}
		end := sizeBytes + int(binary.LittleEndian.Uint32(rest))
		events = append(events, rest[sizeBytes:end:end])
		rest = rest[end:]
	}
	return h, events, nil
}

// Position is a place between two events of the archive of a Broker. The zero value is the beginning. Its text form can be stored.
type Position struct {
	// created distinguishes the archive from an earlier one of the same Broker, in nanoseconds. sequence is the message of the next event, index
	// the number of events before it in the message.
	created  int64
	sequence uint64
	index    int
}

// String returns the text form.
func (p Position) String() string {
	if p == (Position{}) {
		return ""
	}
	return strconv.FormatInt(p.created, 36) + "-" + strconv.FormatUint(p.sequence, 36) + "-" + strconv.Itoa(p.index)
}

// ParsePosition is the inverse of String.
func ParsePosition(text string) (p Position, err error) {
	if text == "" {
		return p, nil
	}
	parts := strings.Split(text, "-")
	if len(parts) != 3 {
		return p, fmt.Errorf("position '%.100s' of an archive must have three parts", text)
	}
	created, errC := strconv.ParseInt(parts[0], 36, 64)
	sequence, errS := strconv.ParseUint(parts[1], 36, 64)
	index, errI := strconv.ParseUint(parts[2], 10, 31)
	if errors.Join(errC, errS, errI) != nil || created <= 0 || sequence == 0 {
		return p, fmt.Errorf("position '%.100s' of an archive must have three positive numbers", text)
	}
	return Position{created, sequence, int(index)}, nil
}
