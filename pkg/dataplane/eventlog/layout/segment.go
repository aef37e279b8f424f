package layout

import (
	"encoding/binary"
	"errors"
)

// segmentVersion is the first byte of every segment. Records follow, each preceded by its length as a uvarint.
const segmentVersion = 1

// Overhead bounds the size of a message besides its data, in bytes.
const Overhead = 1 << 10

// RecordSize is the maximum size that a record of n bytes adds to a segment. A segment has one byte besides its records.
func RecordSize(n int) int { return n + binary.MaxVarintLen32 }

// AppendRecord appends a record to a segment, which is empty at first.
func AppendRecord(segment, data []byte) []byte {
	if len(segment) == 0 {
		segment = append(segment, segmentVersion)
	}
	segment = binary.AppendUvarint(segment, uint64(len(data)))
	return append(segment, data...)
}

var errMalformed = errors.New("not a segment of this version")

// Records returns the records of a segment. They share its memory.
func Records(segment []byte) ([][]byte, error) {
	if len(segment) == 0 || segment[0] != segmentVersion {
		return nil, errMalformed
	}
	n := 0
	for rest := segment[1:]; len(rest) > 0; n++ {
		size, width := binary.Uvarint(rest)
		if width <= 0 || size > uint64(len(rest)-width) {
			return nil, errMalformed
		}
		rest = rest[width+int(size):]
	}
	all := make([][]byte, 0, n)
	for rest := segment[1:]; len(rest) > 0; {
		size, width := binary.Uvarint(rest)
		end := width + int(size)
		all = append(all, rest[width:end:end])
		rest = rest[end:]
	}
	return all, nil
}
