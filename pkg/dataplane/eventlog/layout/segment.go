package eventlog

import (
	"encoding/binary"
	"errors"
)

// frameVersion begins every frame. What follows are records, each after its length as a uvarint.
const frameVersion = 1

// recordSize is the room that a record of n bytes takes at most.
func recordSize(n int) int { return n + binary.MaxVarintLen32 }

func appendRecord(frame, data []byte) []byte {
	if len(frame) == 0 {
		frame = append(frame, frameVersion)
	}
	frame = binary.AppendUvarint(frame, uint64(len(data)))
	return append(frame, data...)
}

var errMalformed = errors.New("not a frame of this version")

// records returns those of a frame, which share its memory.
func records(frame []byte) ([][]byte, error) {
	if len(frame) == 0 || frame[0] != frameVersion {
		return nil, errMalformed
	}
	n := 0
	for rest := frame[1:]; len(rest) > 0; n++ {
		size, width := binary.Uvarint(rest)
		if width <= 0 || size > uint64(len(rest)-width) {
			return nil, errMalformed
		}
		rest = rest[width+int(size):]
	}
	all := make([][]byte, 0, n)
	for rest := frame[1:]; len(rest) > 0; {
		size, width := binary.Uvarint(rest)
		end := width + int(size)
		all = append(all, rest[width:end:end])
		rest = rest[end:]
	}
	return all, nil
}
