package layout

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/klauspost/compress/s2"
)

const (
	// segmentVersion is the first byte of a segment. Records follow, each preceded by its length as a uvarint.
	segmentVersion = 1
	// compressedVersion is the first byte of a segment whose records are compressed as a block of S2, an extension of Snappy.
	compressedVersion = 2
	// maxRecords bounds the size of the records of a segment, in bytes: no server accepts larger messages.
	maxRecords = 64 << 20
)

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

// Compress returns a segment whose records are compressed, in the memory of buffer if that has enough. smaller is false if that would not make it
// smaller; then only the memory is of use.
func Compress(buffer, segment []byte) (compressed []byte, smaller bool) {
	if len(segment) == 0 || segment[0] != segmentVersion {
		return buffer, false
	}
	records := segment[1:]
	buffer = append(slices.Grow(buffer[:0], 1+s2.MaxEncodedLen(len(records))), compressedVersion)
	size := len(s2.Encode(buffer[1:cap(buffer)], records))
	return buffer[:1+size], size < len(records)
}

// decompress is the inverse of Compress. It returns a segment that is not compressed as it is.
func decompress(segment []byte) ([]byte, error) {
	if len(segment) == 0 || segment[0] != compressedVersion {
		return segment, nil
	}
	size, err := s2.DecodedLen(segment[1:])
	if err != nil || size > maxRecords {
		return nil, errMalformed
	}
	records := make([]byte, 1+size)
	records[0] = segmentVersion
	if _, err := s2.Decode(records[1:], segment[1:]); err != nil {
		return nil, errMalformed
	}
	return records, nil
}

var errMalformed = errors.New("not a segment of this version")

// Records returns the records of a segment. They share its memory, unless it is compressed.
func Records(segment []byte) ([][]byte, error) {
	segment, err := decompress(segment)
	if err != nil || len(segment) == 0 || segment[0] != segmentVersion {
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
