package archive

import (
	"errors"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
)

// TestEncode splits many bytes into several records, and decodes them.
func TestEncode(t *testing.T) {
	at := time.Unix(1, 2)
	records, _ := encode(at, []*event.Event{newEvent("0", 10), newEvent("1", recordBytes), newEvent("2", 10)})
	if len(records) != 2 || records[0].events != 2 || records[1].events != 1 {
		t.Fatalf("%d records", len(records))
	}
	for i := range records {
		setNumber(records[i].data, uint64(10+i))
		h, events, err := parse(records[i].data)
		if err != nil || !h.accepted.Equal(at) || h.number != uint64(10+i) || len(events) != records[i].events {
			t.Errorf("record %d: %+v with %d events: %v", i, h, len(events), err)
		}
		for _, data := range events {
			if _, err := event.Decode(data); err != nil {
				t.Errorf("record %d: %v", i, err)
			}
		}
	}
	whole := records[0].data
	for name, data := range map[string][]byte{
		"empty": {}, "another version": append([]byte{9}, whole[1:]...), "cut header": whole[:headerBytes-1], "cut event": whole[:len(whole)-1],
		"size too large": append(whole[:headerBytes:headerBytes], 0xff, 0xff, 0xff, 0xff, 1), "cut size": append(whole[:headerBytes:headerBytes], 1, 0),
	} {
		if _, _, err := parse(data); !errors.Is(err, errDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPosition parses the text form, and rejects others.
func TestPosition(t *testing.T) {
	for _, p := range []Position{{}, {1, 2, 3}, {1 << 62, 1 << 63, 1 << 30}} {
		if got, err := ParsePosition(p.String()); err != nil || got != p {
			t.Errorf("%q is %+v, want %+v: %v", p, got, p, err)
		}
	}
	for _, text := range []string{"-", "1-2", "1-2-3-4", "1-0-3", "0-2-3", "-1-2-3", "1-2--3", "1-2-x", "ä-2-3", "1-2-99999999999"} {
		if got, err := ParsePosition(text); err == nil {
			t.Errorf("%q is %+v", text, got)
		}
	}
}
