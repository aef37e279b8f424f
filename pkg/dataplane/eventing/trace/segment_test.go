package trace

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// block returns a block with records of events.
func block(ids ...string) []byte {
	var records []byte
	for _, id := range ids {
		r := acceptanceOf(id)
		record := appendRecord(nil, &r)
		records = append(append(records, byte(len(record))|0x80, byte(len(record)>>7)), record...)
	}
	return appendBlock(nil, records)
}

// TestIndex finds the blocks of a hash in an index, also if there are many of them, the newest first.
func TestIndex(t *testing.T) {
	s := &segment{path: filepath.Join(t.TempDir(), "1"), records: 1, first: time.Unix(1, 0), last: time.Unix(2, 0), size: 99}
	var entries []entry
	for i := range 10_000 {
		entries = append(entries, entry{hashID(strconv.Itoa(i)), uint32(i)}, entry{hashID("many"), uint32(i)}, entry{hashID("twice"), 7})
	}
	if err := s.writeIndex(entries); err != nil {
		t.Fatal(err)
	}
	loaded, err := loadSegment(s.path)
	if err != nil || loaded.size != s.size || !loaded.first.Equal(s.first) || !loaded.last.Equal(s.last) || loaded.records != 1 || loaded.entries != 20_001 {
		t.Fatalf("loaded %+v, %v", loaded, err)
	}
	for i := range 10_000 {
		if offsets, more, err := loaded.offsets(hashID(strconv.Itoa(i)), 10); err != nil || more || len(offsets) != 1 || offsets[0] != uint32(i) {
			t.Fatalf("%d: got %v, more %t, %v", i, offsets, more, err)
		}
	}
	if offsets, more, err := loaded.offsets(hashID("many"), 100); err != nil || !more || len(offsets) != 100 || offsets[0] != 9_999 || offsets[99] != 9_900 {
		t.Errorf("got %v, more %t, %v", offsets, more, err)
	}
	if offsets, more, err := loaded.offsets(hashID("twice"), 100); err != nil || more || len(offsets) != 1 {
		t.Errorf("got %v, more %t, %v", offsets, more, err)
	}
	if offsets, _, err := loaded.offsets(hashID("absent"), 100); err != nil || len(offsets) != 0 {
		t.Errorf("got %v, %v", offsets, err)
	}
}

// FuzzSegment recovers a segment with arbitrary contents, and keeps what precedes the damage.
func FuzzSegment(f *testing.F) {
	f.Add([]byte{})
	f.Add(block("2"))
	f.Add(block("2", "3")[:20])
	f.Add(bytes.Repeat([]byte{0xff}, 100))
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "1")
		valid := block("1")
		if err := os.WriteFile(path+dataSuffix, append(valid, data...), 0o600); err != nil {
			t.Fatal(err)
		}
		recovered, err := recoverSegment(path)
		if err != nil || recovered == nil || recovered.records < 1 {
			t.Fatalf("recovered %+v, %v", recovered, err)
		}
		loaded, err := loadSegment(path)
		if err != nil || loaded.size != recovered.size {
			t.Fatalf("loaded %+v, %v; want %+v", loaded, err, recovered)
		}
		q := finder{query: Query{Namespace: "shop"}, id: []byte("1")}
		offsets, _, err := loaded.offsets(hashID("1"), maxBlocks)
		if err != nil || len(offsets) == 0 {
			t.Fatalf("found blocks %v, %v", offsets, err)
		}
		q.read(t.Context(), loaded, offsets)
		if len(q.found) == 0 {
			t.Fatal("the record before the damage is not found")
		}
	})
}

// FuzzIndex loads an arbitrary index.
func FuzzIndex(f *testing.F) {
	path := filepath.Join(f.TempDir(), "1")
	if err := (&segment{path: path, first: time.Unix(1, 0), last: time.Unix(1, 0)}).writeIndex([]entry{{hashID("1"), 0}, {hashID("2"), 0}}); err != nil {
		f.Fatal(err)
	}
	index, err := os.ReadFile(path + indexSuffix)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(index)
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "1")
		if err := os.WriteFile(path+indexSuffix, data, 0o600); err != nil {
			t.Fatal(err)
		}
		loaded, err := loadSegment(path)
		if err != nil {
			return
		}
		for _, id := range []string{"1", "2", "3"} {
			if offsets, _, err := loaded.offsets(hashID(id), 10); err != nil || len(offsets) > 10 {
				t.Fatalf("found blocks %v, %v", offsets, err)
			}
		}
	})
}
