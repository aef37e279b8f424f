package deadletter

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

func newEvent(id string, data []byte) *event.Event {
	return &event.Event{
		Attributes: []event.Attribute{{Name: event.ID, Value: id}, {Name: event.Source, Value: "/s"}, {Name: event.EventType, Value: "t"}},
		Data:       data,
	}
}

var failure = Failure{
	Address: "http://a/", Reply: true, Attempts: 3, Code: 503, Error: "503 Service Unavailable", Response: []byte{0xff, 'x'},
	Accepted: time.Unix(1, 2).UTC(), Failed: time.Unix(3, 4).UTC(),
}

// TestReport returns the event and the failure of a report, and no attribute of the report remains.
func TestReport(t *testing.T) {
	e := newEvent("1", []byte("data"))
	got, f, found := Reported(Report(e, failure))
	if !found || cmp.Diff(e, got) != "" || cmp.Diff(failure, f) != "" {
		t.Errorf("reported %t:\n%s\n%s", found, cmp.Diff(e, got), cmp.Diff(failure, f))
	}
	if _, _, found := Reported(e); found {
		t.Error("an event without a report has one")
	}
	// A sender may use the attribute.
	got, f, found = Reported(e.With(event.Attribute{Name: reportAttribute, Value: "{"}))
	if !found || cmp.Diff(e, got) != "" || cmp.Diff(Failure{}, f) != "" {
		t.Errorf("an invalid report: %+v", f)
	}
	long := failure
	long.Error, long.Response = strings.Repeat("é", 5000), []byte(strings.Repeat("x", 5000))
	if _, f, _ := Reported(Report(e, long)); len(f.Error) > maxError+2 || len(f.Response) != MaxResponse {
		t.Errorf("a long report has %d and %d bytes", len(f.Error), len(f.Response))
	}
}

// TestSent reads the attributes of a dead letter (eventing Event Delivery).
func TestSent(t *testing.T) {
	e := newEvent("1", nil)
	want := Failure{Address: "http://a/", Code: 503, Response: []byte{0xff, 'x'}}
	if got, f := Sent(AsSent(e, failure)); cmp.Diff(e, got) != "" || cmp.Diff(want, f) != "" {
		t.Error(cmp.Diff(want, f))
	}
	want = Failure{Address: "http://a/", Error: "connection refused"}
	if got, f := Sent(AsSent(e, want)); cmp.Diff(e, got) != "" || cmp.Diff(want, f) != "" {
		t.Error(cmp.Diff(want, f))
	}
	if _, f := Sent(e.With(event.Attribute{Name: event.ErrorCode, Value: "x"}, event.Attribute{Name: event.ErrorData, Value: "?"})); cmp.Diff(Failure{}, f) != "" {
		t.Errorf("invalid attributes: %+v", f)
	}
}

// TestEncode decodes an encoded dead letter, and rejects everything else without a panic.
func TestEncode(t *testing.T) {
	l := Letter{
		Failure: failure, Consumer: eventing.Key{Kind: eventing.Trigger, Namespace: "ns", Name: "t"},
		Stream: eventing.Key{Kind: eventing.Broker, Namespace: "other", Name: "b"}, Event: newEvent("1", []byte("data")),
	}
	data, err := l.encode()
	if err != nil {
		t.Fatal(err)
	}
	var got Letter
	if err := got.decode(data); err != nil || cmp.Diff(l, got) != "" {
		t.Errorf("%v:\n%s", err, cmp.Diff(l, got))
	}
	for n := range data {
		if err := new(Letter).decode(data[:n]); err == nil {
			t.Errorf("the first %d of %d bytes are a dead letter", n, len(data))
		}
	}
	for _, damaged := range []string{"\x02", "\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "\x01\x02[]"} {
		if err := new(Letter).decode([]byte(damaged)); err == nil {
			t.Errorf("%q is a dead letter", damaged)
		}
	}
}
