package layout

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRecords(t *testing.T) {
	big := make([]byte, 300)
	var segment []byte
	for _, r := range [][]byte{[]byte("a"), {}, big} {
		segment = AppendRecord(segment, r)
	}
	got, err := Records(segment)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([][]byte{[]byte("a"), {}, big}, got); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	for name, segment := range map[string][]byte{
		"empty":           {},
		"another version": {9, 1, 'a'},
		"cut":             segment[:len(segment)-1],
		"length too long": {1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1},
		"length cut":      {1, 0x80},
	} {
		if _, err := Records(segment); !errors.Is(err, errMalformed) {
			t.Errorf("%s: %v, want errMalformed", name, err)
		}
	}
}

// A compressed segment has the same records. One that would not become smaller is not compressed.
func TestCompress(t *testing.T) {
	want := [][]byte{[]byte("a"), bytes.Repeat([]byte("b"), 5000), {}}
	var segment []byte
	for _, r := range want {
		segment = AppendRecord(segment, r)
	}
	for name, buffer := range map[string][]byte{"no memory": nil, "little memory": make([]byte, 3), "enough": make([]byte, 1<<20)} {
		compressed, smaller := Compress(buffer, segment)
		if !smaller || len(compressed) >= len(segment)/2 {
			t.Fatalf("with %s: %d bytes became %d", name, len(segment), len(compressed))
		}
		if got, err := Records(compressed); err != nil || !slices.EqualFunc(got, want, bytes.Equal) {
			t.Errorf("with %s: %v, records %q", name, err, got)
		}
		for cut := range len(compressed) {
			if _, err := Records(compressed[:cut]); !errors.Is(err, errMalformed) {
				t.Errorf("cut after %d bytes: %v, want errMalformed", cut, err)
			}
		}
		if _, smaller := Compress(nil, compressed); smaller {
			t.Error("a compressed segment was compressed")
		}
	}
	for name, segment := range map[string][]byte{"empty": nil, "without repetition": AppendRecord(nil, []byte("abcdefgh"))} {
		if got, smaller := Compress(nil, segment); smaller {
			t.Errorf("%s: became %d bytes", name, len(got))
		}
	}
	// The length that a block claims is checked before memory for it is allocated: 4 GiB - 1.
	if _, err := Records([]byte{compressedVersion, 0xff, 0xff, 0xff, 0xff, 0x0f, 0}); !errors.Is(err, errMalformed) {
		t.Errorf("too long: %v, want errMalformed", err)
	}
}
