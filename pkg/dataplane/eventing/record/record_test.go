package broker

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/types"
)

var headers = map[string]header{
	"shared":   {id: 1, accepted: time.Unix(1700000000, 5), targets: []types.UID{"a", "0b8d4d4e-3c4c-4a47-9d60-000000000000"}},
	"retry":    {id: math.MaxUint64, accepted: time.Unix(0, 1), attempts: 1000, due: time.Unix(1700000060, 0), away: true},
	"old":      {accepted: time.Unix(-1, 0)},
	"no names": {accepted: time.Unix(1, 0), targets: []types.UID{"", ""}},
}

func TestHeaderRoundTrip(t *testing.T) {
	for name, h := range headers {
		t.Run(name, func(t *testing.T) {
			prefix := []byte("before")
			data := append(h.append(prefix), "event"...)
			var have header
			rest, err := have.parse(data[len(prefix):])
			if err != nil {
				t.Fatal(err)
			}
			if string(rest) != "event" {
				t.Errorf("behind the header is %q, want %q", rest, "event")
			}
			if diff := cmp.Diff(h, have, cmp.AllowUnexported(header{}), cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestHeaderTruncated(t *testing.T) {
	for name, h := range headers {
		data := h.append(nil)
		for n := range data {
			var have header
			if _, err := have.parse(data[:n]); !errors.Is(err, errRecord) {
				t.Errorf("%s cut to %d of %d bytes: %v, want errRecord", name, n, len(data), err)
			}
		}
	}
}

func TestHeaderOfOtherVersion(t *testing.T) {
	h := headers["retry"]
	data := h.append(nil)
	data[0] = recordVersion + 1
	var have header
	if _, err := have.parse(data); !errors.Is(err, errRecord) {
		t.Errorf("%v, want errRecord", err)
	}
}

func TestParcelRoundTrip(t *testing.T) {
	e := newEvent("1", ttl("3"))
	p := parcel{
		event: e, encoded: e.Append(nil), id: 7, accepted: time.Unix(5, 0), attempts: 3, due: time.Unix(9, 1), away: true,
	}
	have, err := decodeRecord(p.record(p.header()))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(p, *have, cmp.AllowUnexported(parcel{}, held{})); diff != "" {
		t.Error(diff)
	}
}

// FuzzHeader checks that parse never panics nor takes much memory for little data, and that what it accepts stays the
// same when it is written and read again.
func FuzzHeader(f *testing.F) {
	for _, h := range headers {
		f.Add(append(h.append(nil), "event"...))
	}
	f.Add([]byte{recordVersion, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		var h header
		rest, err := h.parse(data)
		if err != nil {
			return
		}
		if cap(h.targets) > len(data) {
			t.Fatalf("room for %d targets was made for %d bytes", cap(h.targets), len(data))
		}
		var again header
		same, err := again.parse(append(h.append(nil), rest...))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(h, again, cmp.AllowUnexported(header{}), cmpopts.EquateEmpty()); diff != "" || string(same) != string(rest) {
			t.Errorf("%s\nbehind it is %q, want %q", diff, same, rest)
		}
	})
}
