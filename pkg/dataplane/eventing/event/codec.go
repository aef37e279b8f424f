package event

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// The form of an event in the log, version 1: the version and the flags, a byte each; the numbers of attributes and of
// headers; for each attribute the length of its name, and the length of its value times four plus its type; for each
// header the lengths of its name and of its value; the length of the data; then all names and values in that order,
// then the data. Numbers are uvarints. It is not the JSON format of CloudEvents because that has no members for the content mode
// and the carried headers.
const (
	logVersion = 1

	flagStructured = 1 << 0
	flagData       = 1 << 1
	flagV03        = 1 << 2

	typeBits = 2
)

// Size returns the maximum number of bytes that Append appends.
func (e *Event) Size() int {
	const number = 5
	size := 2 + 3*number + len(e.Data)
	for i := range e.Attributes {
		size += 2*number + len(e.Attributes[i].Name) + len(e.Attributes[i].Value)
	}
	for i := range e.Headers {
		size += 2*number + len(e.Headers[i].Name) + len(e.Headers[i].Value)
	}
	return size
}

// Append appends the event in the form of the log. Decode reads it.
func (e *Event) Append(buf []byte) []byte {
	var flags byte
	if e.Structured {
		flags |= flagStructured
	}
	if e.Data != nil {
		flags |= flagData
	}
	if e.V03 {
		flags |= flagV03
	}
	buf = append(buf, logVersion, flags)
	buf = binary.AppendUvarint(buf, uint64(len(e.Attributes)))
	buf = binary.AppendUvarint(buf, uint64(len(e.Headers)))
	for i := range e.Attributes {
		a := &e.Attributes[i]
		buf = binary.AppendUvarint(buf, uint64(len(a.Name)))
		buf = binary.AppendUvarint(buf, uint64(len(a.Value))<<typeBits|uint64(a.Type))
	}
	for i := range e.Headers {
		buf = binary.AppendUvarint(buf, uint64(len(e.Headers[i].Name)))
		buf = binary.AppendUvarint(buf, uint64(len(e.Headers[i].Value)))
	}
	buf = binary.AppendUvarint(buf, uint64(len(e.Data)))
	for i := range e.Attributes {
		buf = append(append(buf, e.Attributes[i].Name...), e.Attributes[i].Value...)
	}
	for i := range e.Headers {
		buf = append(append(buf, e.Headers[i].Name...), e.Headers[i].Value...)
	}
	return append(buf, e.Data...)
}

var errTruncated = errors.New("it ends early")

// Decode reads an event that Append wrote. Its Data is part of data, which may not change as long as the event is in use; names
// and values are copied. It returns an error for any other data.
func Decode(data []byte) (*Event, error) {
	e, err := decode(data)
	if err != nil {
		return nil, fmt.Errorf("decode event of %d bytes: %w", len(data), err)
	}
	return e, nil
}

func decode(data []byte) (*Event, error) {
	if len(data) < 2 {
		return nil, errTruncated
	}
	if data[0] != logVersion {
		return nil, fmt.Errorf("its version is %d instead of %d", data[0], logVersion)
	}
	flags := data[1]
	if flags&^(flagStructured|flagData|flagV03) != 0 {
		return nil, fmt.Errorf("its flags are %#x", flags)
	}
	lengths := reader{rest: data[2:]}
	attributes, headers := lengths.count(), lengths.count()
	if lengths.bad || attributes+headers > len(lengths.rest)/2 {
		return nil, errTruncated
	}
	// The lengths are read twice, the first time to see where the names begin.
	ahead := lengths
	total := 0
	for range attributes {
		total += ahead.count() + ahead.count()>>typeBits
	}
	for range 2 * headers {
		total += ahead.count()
	}
	size := ahead.count()
	switch {
	case ahead.bad || total+size > len(ahead.rest):
		return nil, errTruncated
	case total+size < len(ahead.rest):
		return nil, fmt.Errorf("%d bytes follow its end", len(ahead.rest)-total-size)
	case flags&flagData == 0 && size > 0:
		return nil, errors.New("it has data, its flags say none")
	}

	e := &Event{Structured: flags&flagStructured != 0, V03: flags&flagV03 != 0}
	text := names{rest: string(ahead.rest[:total])}
	if attributes > 0 {
		e.Attributes = make([]Attribute, attributes)
	}
	for i := range e.Attributes {
		name, value := lengths.count(), lengths.count()
		a := &e.Attributes[i]
		a.Name, a.Value, a.Type = text.next(name), text.next(value>>typeBits), Type(value&(1<<typeBits-1))
		if a.Type > Boolean {
			return nil, fmt.Errorf("attribute %.40q has the unknown type %d", a.Name, a.Type)
		}
	}
	if headers > 0 {
		e.Headers = make([]Header, headers)
	}
	for i := range e.Headers {
		name, value := lengths.count(), lengths.count()
		e.Headers[i] = Header{Name: text.next(name), Value: text.next(value)}
	}
	if flags&flagData != 0 {
		e.Data = ahead.rest[total:len(ahead.rest):len(ahead.rest)]
	}
	return e, nil
}

// reader reads uvarints.
type reader struct {
	rest []byte
	bad  bool
}

// count reads a number. It returns 0 and sets bad if the number is missing or exceeds every length.
func (r *reader) count() int {
	n, size := binary.Uvarint(r.rest)
	// The bound keeps sums of lengths from overflowing.
	if size <= 0 || n > math.MaxInt32 {
		r.bad = true
		return 0
	}
	r.rest = r.rest[size:]
	return int(n)
}

// names cuts a string into pieces.
type names struct{ rest string }

func (n *names) next(length int) (piece string) {
	piece, n.rest = n.rest[:length], n.rest[length:]
	return piece
}
