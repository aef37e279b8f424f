package tail

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/filter"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

var orders = eventing.Key{Kind: eventing.Broker, Namespace: "shop", Name: "orders"}

func newEvent(id, kind, data string) *event.Event {
	return &event.Event{Data: []byte(data), Headers: []event.Header{{Name: "traceparent", Value: "secret"}}, Attributes: []event.Attribute{
		{Name: "id", Value: id}, {Name: "source", Value: "/s"}, {Name: "type", Value: kind}, {Name: event.TTL, Value: "255", Type: event.Integer},
	}}
}

func cesql(t *testing.T, expression string) *filter.Filter {
	t.Helper()
	compiled, err := filter.Compile(nil, []eventing.Filter{{CESQL: expression}})
	if err != nil {
		t.Fatal(err)
	}
	return compiled
}

// open opens a tail that is read until the test ends, and returns it with a function that returns the text read so far.
func open(t *testing.T, h *Hub, options Options) (*Tail, func() string) {
	t.Helper()
	opened, err := h.Open(orders, options)
	if err != nil {
		t.Fatal(err)
	}
	var read bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := opened.Copy(ctx, &read, func() error { return nil }); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done; opened.Close() })
	return opened, func() string { synctest.Wait(); return read.String() }
}

// TestShow shows the events that pass the filter, with data only on request, and without headers and the attribute of Brokers.
func TestShow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &Hub{}
		_, headers := open(t, h, Options{Filter: cesql(t, "type = 'a'")})
		_, whole := open(t, h, Options{Data: true})
		at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
		h.Offer(orders, newEvent("1", "a", `{"x":1}`), at)
		h.Offer(orders, newEvent("2", "b", strings.Repeat("x", MaxData+1)), at)
		h.Offer(eventing.Key{Kind: eventing.Broker, Namespace: "shop", Name: "other"}, newEvent("3", "a", ""), at)
		const first = `{"acceptedAt":"2026-01-02T03:04:05.000000006Z","event":{"specversion":"1.0","id":"1","source":"/s","type":"a"`
		if got, want := headers(), first+"}}\n"; got != want {
			t.Errorf("headers: %s, want %s", got, want)
		}
		want := first + `,"data":{"x":1}}}` + "\n" +
			`{"acceptedAt":"2026-01-02T03:04:05.000000006Z","event":{"specversion":"1.0","id":"2","source":"/s","type":"b"},"dataOmitted":true}` + "\n"
		if got := whole(); got != want {
			t.Errorf("whole: %s, want %s", got, want)
		}
	})
}

// dropped returns the sum of all reports, and the number of other lines.
func dropped(t *testing.T, read string) (sum Dropped, lines int) {
	t.Helper()
	for line := range strings.Lines(read) {
		var d Dropped
		if err := json.Unmarshal([]byte(line), &d); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if d == (Dropped{}) {
			lines++
		}
		sum.Dropped.Overloaded += d.Dropped.Overloaded
		sum.Dropped.FilterTooExpensive += d.Dropped.FilterTooExpensive
		sum.Dropped.RateLimited += d.Dropped.RateLimited
		sum.Dropped.SlowClient += d.Dropped.SlowClient
	}
	return sum, lines
}

// TestFlood shows at most MaxRate events a second, and reports all others.
func TestFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &Hub{}
		_, read := open(t, h, Options{})
		const offered = 20_000
		for i := range offered {
			h.Offer(orders, newEvent(fmt.Sprint(i), "a", ""), time.Now())
		}
		synctest.Wait()
		time.Sleep(2 * reportInterval) //nolint:forbidigo // virtual time
		sum, lines := dropped(t, read())
		d := sum.Dropped
		if total := int64(lines) + d.Overloaded + d.RateLimited; lines != MaxRate || total != offered || d.Overloaded < offered-maxOffered-1 {
			t.Errorf("%d lines, dropped %+v", lines, d)
		}
	})
}

// TestExpensive reports events whose filter exceeds the budget.
func TestExpensive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &Hub{}
		_, read := open(t, h, Options{Filter: cesql(t, "long LIKE '%"+strings.Repeat("a", 3900)+"_b%'")})
		e := newEvent("1", "a", "")
		e.Attributes = append(e.Attributes, event.Attribute{Name: "long", Value: strings.Repeat("a", 60<<10)})
		h.Offer(orders, e, time.Now())
		synctest.Wait()
		time.Sleep(2 * reportInterval) //nolint:forbidigo // virtual time
		if sum, lines := dropped(t, read()); lines != 0 || sum.Dropped.FilterTooExpensive != 1 {
			t.Errorf("%d lines, dropped %+v", lines, sum)
		}
	})
}

// TestSlowClient bounds the lines that wait for a client that does not read, and reports the others later.
func TestSlowClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &Hub{}
		opened, err := h.Open(orders, Options{Data: true})
		if err != nil {
			t.Fatal(err)
		}
		defer opened.Close()
		r, w := io.Pipe()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { w.CloseWithError(opened.Copy(ctx, w, func() error { return nil })) }()
		const offered = 60
		for i := range offered {
			h.Offer(orders, newEvent(fmt.Sprint(i), "a", strings.Repeat("x", MaxData-100)), time.Now())
			synctest.Wait()
			time.Sleep(longestPause) //nolint:forbidigo // virtual time
		}
		if buffered := opened.buffered.Load(); buffered > maxBuffered+2*MaxData {
			t.Errorf("%d bytes are buffered", buffered)
		}
		var read bytes.Buffer
		copied := make(chan error, 1)
		go func() { _, err := io.Copy(&read, r); copied <- err }()
		synctest.Wait()
		time.Sleep(2 * reportInterval) //nolint:forbidigo // virtual time
		cancel()
		if err := <-copied; err != nil {
			t.Error(err)
		}
		if sum, lines := dropped(t, read.String()); lines == 0 || int64(lines)+sum.Dropped.SlowClient != offered || sum.Dropped.SlowClient == 0 {
			t.Errorf("%d lines, dropped %+v", lines, sum)
		}
	})
}

// TestLimits bounds the tails of a namespace and of the replica.
func TestLimits(t *testing.T) {
	h := &Hub{}
	var all []*Tail
	for ns := range maxTails / MaxOfNamespace {
		for range MaxOfNamespace {
			opened, err := h.Open(eventing.Key{Kind: eventing.Broker, Namespace: fmt.Sprint(ns), Name: "orders"}, Options{})
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, opened)
		}
	}
	if _, err := h.Open(eventing.Key{Namespace: "0"}, Options{}); !errors.Is(err, ErrTooMany) || !strings.Contains(err.Error(), "8 tails of the namespace") {
		t.Errorf("one more of a namespace: %v", err)
	}
	if _, err := h.Open(orders, Options{}); !errors.Is(err, ErrTooMany) || !strings.Contains(err.Error(), "64 tails") {
		t.Errorf("one more: %v", err)
	}
	all[0].Close()
	all[0].Close()
	again, err := h.Open(orders, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, opened := range append(all, again) {
		opened.Close()
	}
	h.taps.Range(func(key, _ any) bool { t.Errorf("%v is left", key); return true })
	if len(h.namespaces) > 0 || h.open.Load() != 0 {
		t.Errorf("%d namespaces, %d tails are left", len(h.namespaces), h.open.Load())
	}
}

// TestEnd ends the tails of a stream, and all when the server stops.
func TestEnd(t *testing.T) {
	h := &Hub{}
	copied := func() chan error {
		opened, err := h.Open(orders, Options{})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			defer opened.Close()
			done <- opened.Copy(context.WithoutCancel(t.Context()), io.Discard, func() error { return nil })
		}()
		return done
	}
	first, second := copied(), copied()
	h.End(eventing.Key{Namespace: "shop", Name: "other"})
	h.End(orders)
	if err := errors.Join(<-first, <-second); err != nil {
		t.Error(err)
	}
	third := copied()
	h.Stop()
	h.Stop()
	if err := <-third; err != nil {
		t.Error(err)
	}
	if _, err := h.Open(orders, Options{}); !errors.Is(err, ErrStopped) {
		t.Errorf("after the end: %v", err)
	}
	var none *Hub
	none.Offer(orders, newEvent("1", "a", ""), time.Now())
	none.End(orders)
	none.Stop()
}

// BenchmarkOffer measures what accepting an event costs without a tail, and with one that shows few events.
func BenchmarkOffer(b *testing.B) {
	e := newEvent("1", "a", strings.Repeat("x", 1000))
	b.Run("none", func(b *testing.B) {
		h := &Hub{}
		b.ReportAllocs()
		for b.Loop() {
			h.Offer(orders, e, time.Time{})
		}
	})
	b.Run("one", func(b *testing.B) {
		h := &Hub{}
		compiled, err := filter.Compile(nil, []eventing.Filter{{CESQL: "type = 'b'"}})
		if err != nil {
			b.Fatal(err)
		}
		opened, err := h.Open(orders, Options{Filter: compiled})
		if err != nil {
			b.Fatal(err)
		}
		defer opened.Close()
		b.ReportAllocs()
		for b.Loop() {
			h.Offer(orders, e, time.Time{})
		}
	})
}
