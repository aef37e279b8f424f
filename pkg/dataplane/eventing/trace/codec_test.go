package trace

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

const traceID = "4bf92f3577b34da6a3ce929d0e0e4736"

// acceptanceOf returns a record of the acceptance of an event, with all fields.
func acceptanceOf(id string) Record {
	return Record{
		Stream: eventing.Key{Kind: eventing.Broker, Namespace: "shop", Name: "orders"}, StreamUID: "b8d9a0c2-5a0e-4b0e-9d2e-0f2b1c3d4e5f", ID: id, Source: "/s",
		Accepted: time.Unix(1, 2),
		Acceptance: &Acceptance{
			Attributes: []event.Attribute{{Name: "type", Value: "created"}, {Name: "count", Value: "3", Type: event.Integer}},
			V03:        true, TraceID: traceID, Sender: "system:serviceaccount:shop:cart", Address: "10.0.0.7",
			Cause:   Cause{ID: "0", Source: "/t", Accepted: time.Unix(0, 5), Consumer: eventing.Key{Kind: eventing.Trigger, Namespace: "shop", Name: "first"}},
			Matched: []eventing.Key{{Kind: eventing.Trigger, Namespace: "shop", Name: "a"}, {Kind: eventing.Trigger, Namespace: "billing", Name: "b"}}, MatchedCount: 2,
			Exceeded: []eventing.Key{{Kind: eventing.Trigger, Namespace: "shop", Name: "c"}}, Filters: 1 << 63,
		},
	}
}

// attemptOf returns a record of an attempt to deliver the event of acceptanceOf, with all fields.
func attemptOf(id string, outcome Outcome) Record {
	r := acceptanceOf(id)
	r.Acceptance = nil
	r.Attempt = &Attempt{
		Consumer: eventing.Key{Kind: eventing.Trigger, Namespace: "shop", Name: "a"}, Role: DeadLetter, Outcome: outcome, Number: 3,
		Start: time.Unix(2, 0), Duration: time.Second, Next: time.Unix(4, 0), Address: "http://a/", Code: 503, Error: "503 Service Unavailable",
		ReplyID: "r", ReplySource: "/r", ReplyAccepted: time.Unix(3, 0),
	}
	return r
}

// TestRecord encodes and decodes records with all fields, and with none.
func TestRecord(t *testing.T) {
	channel := attemptOf("3", Delivered)
	channel.Stream.Kind, channel.Attempt.Consumer.Kind = eventing.Channel, eventing.Subscription
	for name, r := range map[string]Record{
		"acceptance": acceptanceOf("1"), "attempt": attemptOf("2", Dropped), "channel": channel,
		"redelivered":      {Stream: eventing.Key{Kind: eventing.Broker, Namespace: "shop", Name: "b"}, Acceptance: &Acceptance{Redelivered: true}},
		"empty acceptance": {Stream: eventing.Key{Kind: eventing.Channel, Namespace: "shop", Name: "c"}, Acceptance: &Acceptance{}},
	} {
		t.Run(name, func(t *testing.T) {
			data := appendRecord(nil, &r)
			got, err := decodeRecord("shop", data)
			if err != nil || !reflect.DeepEqual(got, r) {
				t.Fatalf("decoded %+v, %v; want %+v", got, err, r)
			}
			for n := range len(data) {
				if short, err := decodeRecord("shop", data[:n]); err == nil && reflect.DeepEqual(short, r) {
					t.Errorf("decoded a record from the first %d of %d bytes", n, len(data))
				}
			}
			if _, err := decodeRecord("shop", append(data, 0xff)); err == nil {
				t.Error("decoded a record that garbage follows")
			}
		})
	}
}

// TestRecords encodes and decodes the records that replicas exchange.
func TestRecords(t *testing.T) {
	want := []Record{acceptanceOf("1"), attemptOf("1", Retried)}
	data := AppendRecords(nil, want)
	if got, err := ReadRecords("shop", data); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v, %v; want %+v", got, err, want)
	}
	if got, err := ReadRecords("shop", data[:len(data)-1]); err == nil {
		t.Errorf("read %+v from incomplete data", got)
	}
	want[0].Stream.Namespace, want[1].Stream.Namespace = "billing", "billing"
	if got, err := ReadRecords("billing", AppendRecords(nil, want)); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v, %v; want %+v", got, err, want)
	}
}

// TestLarge bounds texts, attributes and consumers.
func TestLarge(t *testing.T) {
	r := acceptanceOf(strings.Repeat("i", 60<<10))
	r.Acceptance.Attributes = nil
	for range 200 {
		r.Acceptance.Attributes = append(r.Acceptance.Attributes, event.Attribute{Name: "a", Value: strings.Repeat("v", 200)})
	}
	r.Acceptance.Matched = make([]eventing.Key, 10_000)
	for i := range r.Acceptance.Matched {
		r.Acceptance.Matched[i] = eventing.Key{Kind: eventing.Trigger, Namespace: strings.Repeat("n", 63), Name: strings.Repeat("t", 253)}
	}
	r.Acceptance.Exceeded, r.Acceptance.MatchedCount = r.Acceptance.Matched, len(r.Acceptance.Matched)
	data := appendRecord(nil, &r)
	if len(data) > maxRecord {
		t.Errorf("the record has %d bytes", len(data))
	}
	got, err := decodeRecord("shop", data)
	if err != nil {
		t.Fatal(err)
	}
	if a := got.Acceptance; got.ID != strings.Repeat("i", MaxText) || !a.Cut || len(a.Attributes) == 0 || len(a.Matched) != maxNamed || a.MatchedCount != 10_000 {
		t.Errorf("got an ID of %d bytes, cut %t, %d attributes, %d of %d consumers", len(got.ID), a.Cut, len(a.Attributes), len(a.Matched), a.MatchedCount)
	}
}

// FuzzRecord decodes arbitrary bytes, and encodes the result again.
func FuzzRecord(f *testing.F) {
	for _, r := range []Record{acceptanceOf("1"), attemptOf("2", Retried)} {
		f.Add(appendRecord(nil, &r))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decodeRecord("shop", data)
		if err != nil {
			return
		}
		encoded := appendRecord(nil, &r)
		once, err := decodeRecord("shop", encoded)
		if err != nil {
			t.Fatalf("decode %+v again: %v", r, err)
		}
		if twice, err := decodeRecord("shop", appendRecord(nil, &once)); err != nil || !reflect.DeepEqual(once, twice) {
			t.Fatalf("decoded %+v, then %+v, %v", once, twice, err)
		}
	})
}
