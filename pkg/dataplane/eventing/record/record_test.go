package record

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/types"
)

var headers = map[string]Header{
	"shared":   {ID: 1, Accepted: time.Unix(1700000000, 5), Targets: []types.UID{"a", "0b8d4d4e-3c4c-4a47-9d60-000000000000"}},
	"retry":    {ID: math.MaxUint64, Accepted: time.Unix(0, 1), Attempts: 1000, Due: time.Unix(1700000060, 0), Unanswered: true},
	"old":      {Accepted: time.Unix(-1, 0)},
	"no names": {Accepted: time.Unix(1, 0), Targets: []types.UID{"", ""}},
}

func TestHeaderRoundTrip(t *testing.T) {
	for name, h := range headers {
		t.Run(name, func(t *testing.T) {
			prefix := []byte("before")
			data := append(h.Append(prefix), "event"...)
			var have Header
			rest, err := have.Parse(data[len(prefix):])
			if err != nil {
				t.Fatal(err)
			}
			if string(rest) != "event" {
				t.Errorf("behind the header is %q, want %q", rest, "event")
			}
			if diff := cmp.Diff(h, have, cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestHeaderTruncated(t *testing.T) {
	for name, h := range headers {
		data := h.Append(nil)
		for n := range data {
			var have Header
			if _, err := have.Parse(data[:n]); !errors.Is(err, ErrVersion) {
				t.Errorf("%s cut to %d of %d bytes: %v, want ErrVersion", name, n, len(data), err)
			}
		}
	}
}

func TestHeaderOfOtherVersion(t *testing.T) {
	h := headers["retry"]
	data := h.Append(nil)
	data[0] = version + 1
	var have Header
	if _, err := have.Parse(data); !errors.Is(err, ErrVersion) {
		t.Errorf("%v, want ErrVersion", err)
	}
}

// FuzzHeader checks that parse neither panics nor allocates much memory for little data, and that accepted headers
// survive a round trip.
func FuzzHeader(f *testing.F) {
	for _, h := range headers {
		f.Add(append(h.Append(nil), "event"...))
	}
	f.Add([]byte{version, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		var h Header
		rest, err := h.Parse(data)
		if err != nil {
			return
		}
		if cap(h.Targets) > len(data) {
			t.Fatalf("memory for %d targets was allocated for %d bytes", cap(h.Targets), len(data))
		}
		var reread Header
		same, err := reread.Parse(append(h.Append(nil), rest...))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(h, reread, cmpopts.EquateEmpty()); diff != "" || string(same) != string(rest) {
			t.Errorf("%s\nbehind it is %q, want %q", diff, same, rest)
		}
	})
}
