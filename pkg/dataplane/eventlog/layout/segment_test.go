package layout

import (
	"errors"
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
