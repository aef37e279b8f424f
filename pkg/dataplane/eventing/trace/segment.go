package trace

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/klauspost/compress/s2"
)

// A segment is a file of blocks. A block is the length of its compressed records, their checksum (both 4 bytes), and the records, each
// preceded by its length. The index of a full segment is a second file: a header, the entries sorted by hash, and the hash of every
// 256th entry (fences), which memory keeps.
const (
	dataSuffix, indexSuffix, newSuffix = ".trace", ".index", ".new"

	blockHeader = 8
	// blockBytes is the size of the records in a block, maxBlock bounds it: a block begins a new one after blockBytes, and one record has
	// at most maxRecord bytes.
	blockBytes, maxBlock = 32 << 10, maxRecord + 64<<10

	indexMagic  = "KNTRACE1"
	indexHeader = 8 + 4 + 4 + 8 + 8 + 8
	entryBytes  = 12
	fenceEvery  = 256
)

// entry leads from the hash of an ID to the block with a record of that ID.
type entry struct {
	hash   uint64
	offset uint32
}

// hashID returns the hash by which the records of an event are found.
func hashID(id string) uint64 { return xxhash.Sum64String(id) }

// hashTraceID returns the hash by which the acceptances of a trace are found.
func hashTraceID(id []byte) uint64 { return ^xxhash.Sum64(id) }

// segment is a file of records, with an index once it is full. Its fields do not change then.
type segment struct {
	// path is the path without suffix.
	path string
	// size is the size of the files in bytes, records the number of records, first and last the times at which they were written.
	size, records int64
	first, last   time.Time
	// entries is the number of entries in the index, fences has the hash of every fenceEvery-th.
	entries int
	fences  []uint64
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendBlock appends the block of some records to buf.
func appendBlock(buf, records []byte) []byte {
	start := len(buf)
	buf = slices.Grow(buf, blockHeader+s2.MaxEncodedLen(len(records)))
	compressed := s2.Encode(buf[start+blockHeader:cap(buf)], records)
	buf = buf[:start+blockHeader+len(compressed)]
	binary.LittleEndian.PutUint32(buf[start:], uint32(len(compressed)))
	binary.LittleEndian.PutUint32(buf[start+4:], crc32.Checksum(compressed, castagnoli))
	return buf
}

var errBlock = errors.New("damaged block of trace records")

// readBlock returns the records of the block at an offset, and its size in the file.
func readBlock(file io.ReaderAt, offset int64) (records []byte, size int64, err error) {
	var header [blockHeader]byte
	if _, err := file.ReadAt(header[:], offset); err != nil {
		return nil, 0, fmt.Errorf("read block of trace records: %w", err)
	}
	n := binary.LittleEndian.Uint32(header[:])
	if n == 0 || int(n) > s2.MaxEncodedLen(maxBlock) {
		return nil, 0, errBlock
	}
	compressed := make([]byte, n)
	if _, err := file.ReadAt(compressed, offset+blockHeader); err != nil {
		return nil, 0, fmt.Errorf("read block of trace records: %w", err)
	}
	if crc32.Checksum(compressed, castagnoli) != binary.LittleEndian.Uint32(header[4:]) {
		return nil, 0, errBlock
	}
	if decoded, err := s2.DecodedLen(compressed); err != nil || decoded > maxBlock {
		return nil, 0, errBlock
	}
	if records, err = s2.Decode(nil, compressed); err != nil {
		return nil, 0, errBlock
	}
	return records, blockHeader + int64(n), nil
}

// eachRecord calls do with the records of a block until it returns false.
func eachRecord(records []byte, do func(record []byte) bool) {
	for len(records) > 0 {
		n, size := binary.Uvarint(records)
		if size <= 0 || n > uint64(len(records)-size) {
			return
		}
		if !do(records[size : size+int(n)]) {
			return
		}
		records = records[size+int(n):]
	}
}

// writeIndex writes the index of the segment, after which it is full. It sorts the entries and removes repeated ones.
func (s *segment) writeIndex(entries []entry) error {
	slices.SortFunc(entries, func(a, b entry) int {
		switch {
		case a.hash < b.hash || a.hash == b.hash && a.offset < b.offset:
			return -1
		case a == b:
			return 0
		default:
			return 1
		}
	})
	entries = slices.Compact(entries)
	temporary := s.path + newSuffix
	file, err := os.OpenFile(temporary, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("create index of trace records: %w", err)
	}
	out := bufio.NewWriterSize(file, 64<<10)
	header := append(make([]byte, 0, indexHeader), indexMagic...)
	header = binary.LittleEndian.AppendUint32(header, uint32(len(entries)))
	header = binary.LittleEndian.AppendUint32(header, uint32(s.records))
	header = binary.LittleEndian.AppendUint64(header, uint64(s.first.UnixNano()))
	header = binary.LittleEndian.AppendUint64(header, uint64(s.last.UnixNano()))
	header = binary.LittleEndian.AppendUint64(header, uint64(s.size))
	out.Write(header) //nolint:errcheck // Flush returns the first error
	var buf [entryBytes]byte
	fences := make([]uint64, 0, len(entries)/fenceEvery+1)
	for i, e := range entries {
		if i%fenceEvery == 0 {
			fences = append(fences, e.hash)
		}
		binary.LittleEndian.PutUint64(buf[:], e.hash)
		binary.LittleEndian.PutUint32(buf[8:], e.offset)
		out.Write(buf[:]) //nolint:errcheck // Flush returns the first error
	}
	for _, hash := range fences {
		binary.LittleEndian.PutUint64(buf[:], hash)
		out.Write(buf[:8]) //nolint:errcheck // Flush returns the first error
	}
	err = out.Flush()
	if err == nil {
		// The name appears after the contents, also after a loss of power.
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(temporary, s.path+indexSuffix)
	}
	if err != nil {
		os.Remove(temporary)
		return fmt.Errorf("write index of trace records: %w", err)
	}
	s.entries, s.fences = len(entries), fences
	s.size += indexSize(len(entries))
	return nil
}

func indexSize(entries int) int64 {
	return indexHeader + int64(entries)*entryBytes + int64((entries+fenceEvery-1)/fenceEvery)*8
}

// loadSegment returns the full segment at a path. It fails if the segment has no valid index.
func loadSegment(path string) (*segment, error) {
	file, err := os.Open(path + indexSuffix)
	if err != nil {
		return nil, fmt.Errorf("open index of trace records: %w", err)
	}
	defer file.Close()
	header := make([]byte, indexHeader)
	if _, err := file.ReadAt(header, 0); err != nil || string(header[:8]) != indexMagic {
		return nil, fmt.Errorf("damaged index of trace records '%s'", path)
	}
	number := func(at int) int64 { return int64(binary.LittleEndian.Uint64(header[at:])) }
	s := &segment{
		path: path, entries: int(binary.LittleEndian.Uint32(header[8:])), records: int64(binary.LittleEndian.Uint32(header[12:])),
		first: time.Unix(0, number(16)), last: time.Unix(0, number(24)), size: number(32),
	}
	info, err := file.Stat()
	if err != nil || info.Size() != indexSize(s.entries) {
		return nil, fmt.Errorf("damaged index of trace records '%s'", path)
	}
	fences := make([]byte, (s.entries+fenceEvery-1)/fenceEvery*8)
	if _, err := file.ReadAt(fences, info.Size()-int64(len(fences))); err != nil {
		return nil, fmt.Errorf("read index of trace records: %w", err)
	}
	for ; len(fences) > 0; fences = fences[8:] {
		s.fences = append(s.fences, binary.LittleEndian.Uint64(fences))
	}
	s.size += info.Size()
	return s, nil
}

// offsets returns the offsets of the blocks with records of a hash, the newest first, at most limit. more is true if there are others.
func (s *segment) offsets(hash uint64, limit int) (offsets []uint32, more bool, err error) {
	file, err := os.Open(s.path + indexSuffix)
	if err != nil {
		return nil, false, fmt.Errorf("open index of trace records: %w", err)
	}
	defer file.Close()
	// The fence before the first one that is not less may be followed by entries of the hash.
	chunk := max(sort.Search(len(s.fences), func(i int) bool { return s.fences[i] >= hash })-1, 0)
	buf := make([]byte, fenceEvery*entryBytes)
	for ; chunk < len(s.fences) && s.fences[chunk] <= hash; chunk++ {
		part := buf[:min(fenceEvery, s.entries-chunk*fenceEvery)*entryBytes]
		if _, err := file.ReadAt(part, indexHeader+int64(chunk)*fenceEvery*entryBytes); err != nil {
			return nil, false, fmt.Errorf("read index of trace records: %w", err)
		}
		for ; len(part) > 0; part = part[entryBytes:] {
			if binary.LittleEndian.Uint64(part) == hash {
				offsets = append(offsets, binary.LittleEndian.Uint32(part[8:]))
			}
		}
		// The offsets are in ascending order. Those that may be returned are kept.
		if len(offsets) > 2*limit {
			offsets, more = append(offsets[:0], offsets[len(offsets)-limit:]...), true
		}
	}
	if len(offsets) > limit {
		offsets, more = offsets[len(offsets)-limit:], true
	}
	slices.Reverse(offsets)
	return offsets, more, nil
}

// remove deletes the files of the segment.
func (s *segment) remove() error {
	// Without its data, an index is deleted when the store is opened.
	err := os.Remove(s.path + dataSuffix)
	if indexed := os.Remove(s.path + indexSuffix); !errors.Is(indexed, os.ErrNotExist) {
		err = errors.Join(err, indexed)
	}
	if err != nil {
		return fmt.Errorf("delete trace records: %w", err)
	}
	return nil
}

// recoverSegment completes the segment at a path that has no index, because the process ended before it was full. What follows the last
// valid block is deleted. It returns nil if nothing is left.
func recoverSegment(path string) (*segment, error) {
	file, err := os.OpenFile(path+dataSuffix, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open trace records: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("open trace records: %w", err)
	}
	s := &segment{path: path, first: info.ModTime(), last: info.ModTime()}
	var entries []entry
	for s.size < info.Size() {
		records, size, err := readBlock(file, s.size)
		if err != nil {
			break
		}
		eachRecord(records, func(record []byte) bool {
			h, err := decodeHead(record)
			if err != nil {
				return true
			}
			if s.records++; s.records == 1 {
				s.first = h.accepted
			}
			entries = append(entries, entry{xxhash.Sum64(h.id), uint32(s.size)})
			if id := h.traceID(); id != nil {
				entries = append(entries, entry{hashTraceID(id), uint32(s.size)})
			}
			return true
		})
		s.size += size
	}
	if s.size < info.Size() {
		if err := file.Truncate(s.size); err != nil {
			return nil, fmt.Errorf("delete incomplete trace records: %w", err)
		}
	}
	if s.records == 0 {
		return nil, s.remove()
	}
	return s, s.writeIndex(entries)
}

// segmentName returns the name of a segment that begins at a time.
func segmentName(at time.Time) string { return fmt.Sprintf("%020d", at.UnixNano()) }

// segmentOf returns the name of the segment of a file, or false for other files.
func segmentOf(file string) (name string, ok bool) { return strings.CutSuffix(file, dataSuffix) }
