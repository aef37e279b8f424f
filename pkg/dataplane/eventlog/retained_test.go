package eventlog

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

func retained(t testing.TB, l *Log, id string) *Retained {
	t.Helper()
	r, err := l.Retained(id)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func retain(t testing.TB, r *Retained, queue string, data ...string) {
	t.Helper()
	for _, d := range data {
		began := time.Now()
		err := r.Append(t.Context(), Record{Queue: queue, Data: []byte(d)})
		for r.log.opts.Cluster != nil && errors.Is(err, ErrUnavailable) && time.Since(began) > ackTimeout && time.Since(began) < patience {
			// The servers did not acknowledge it in time.
			err = r.Append(t.Context(), Record{Queue: queue, Data: []byte(d)})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// readAll reads a retained stream in pages.
func readAll(t testing.TB, r *Retained, queue string, count, bytes int) (all []string, pages int) {
	t.Helper()
	for next := uint64(1); next > 0; pages++ {
		messages, following, err := r.Read(t.Context(), queue, next, count, bytes)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range messages {
			all = append(all, string(m.Records[0]))
		}
		next = following
	}
	return all, pages
}

// TestRetainedCompressed stores records that share a message compressed. A page is bounded by their size, not by the size of the messages.
func TestRetainedCompressed(t *testing.T) {
	t.Parallel()
	l := open(t, Options{Dir: t.TempDir()})
	r := retained(t, l, "kept-a")
	const messages, size = 10, 100_000
	record := Record{Data: []byte(strings.Repeat("x", size))}
	for range messages {
		if err := r.AppendTogether(t.Context(), record, record); err != nil {
			t.Fatal(err)
		}
	}
	state, _, err := r.State(t.Context())
	if err != nil || state.Messages != messages || state.Bytes > messages*size/2 {
		t.Errorf("state %+v: %v", state, err)
	}
	count, pages := 0, 0
	for next := uint64(1); next > 0; pages++ {
		page, following, err := r.Read(t.Context(), "", next, 100, 3*size)
		if err != nil || len(page) > 2 || following > 0 && len(page) < 2 {
			t.Fatalf("page %d has %d messages: %v", pages, len(page), err)
		}
		for _, m := range page {
			for _, data := range m.Records {
				if string(data) != string(record.Data) {
					t.Fatalf("read a record of %d bytes", len(data))
				}
				count++
			}
		}
		next = following
	}
	if count != 2*messages || pages != messages/2 {
		t.Errorf("read %d records in %d pages", count, pages)
	}
}

// TestRetained reads, deletes and purges messages, which survive a restart. Its stream is none of the streams of events.
func TestRetained(t *testing.T) {
	t.Parallel()
	o := Options{Dir: t.TempDir()}
	l := open(t, o)
	r := retained(t, l, "kept-a")
	if _, _, err := r.State(t.Context()); !errors.Is(err, ErrNotFound) {
		t.Errorf("state before the first append: %v", err)
	}
	if _, _, err := r.Read(t.Context(), "", 1, 10, 1<<20); !errors.Is(err, ErrNotFound) {
		t.Errorf("read before the first append: %v", err)
	}
	retain(t, r, "x", "0", "1")
	between := time.Now()
	retain(t, r, "y", "2", "3")
	retain(t, r, "x", "4", strings.Repeat("5", 1000), "6")
	closed(t, l)

	l = open(t, o)
	r = retained(t, l, "kept-a")
	if all, pages := readAll(t, r, "", 2, 1<<20); len(all) != 7 || pages != 4 || all[6] != "6" {
		t.Errorf("read %q in %d pages", all, pages)
	}
	if all, _ := readAll(t, r, "y", 10, 1<<20); !slices.Equal(all, []string{"2", "3"}) {
		t.Errorf("read %q of a queue", all)
	}
	if _, pages := readAll(t, r, "", 10, 500); pages != 2 {
		t.Errorf("read %d pages of 500 bytes", pages)
	}
	if at, err := r.SequenceAt(t.Context(), between); err != nil || at != 3 {
		t.Errorf("the first message after a time is %d: %v", at, err)
	}
	if _, err := r.SequenceAt(t.Context(), time.Now().Add(time.Hour)); !errors.Is(err, ErrNotFound) {
		t.Errorf("a message of the future: %v", err)
	}
	if m, err := r.Get(t.Context(), 3); err != nil || string(m.Records[0]) != "2" || m.Queue != "y" || m.Time.Before(between) {
		t.Errorf("got %+v: %v", m, err)
	}
	if err := r.Delete(t.Context(), 3); err != nil {
		t.Error(err)
	}
	for _, sequence := range []uint64{0, 3, 100, 1 << 63} {
		if _, err := r.Get(t.Context(), sequence); !errors.Is(err, ErrNotFound) {
			t.Errorf("get of message %d: %v", sequence, err)
		}
		if err := r.Delete(t.Context(), sequence); sequence > 0 && !errors.Is(err, ErrNotFound) {
			t.Errorf("deletion of message %d: %v", sequence, err)
		}
	}
	if n, err := r.Purge(t.Context(), "x", 2); n != 1 || err != nil {
		t.Errorf("purged %d of a queue: %v", n, err)
	}
	state, queues, err := r.State(t.Context())
	if err != nil || state.Messages != 5 || state.First != 2 || state.Last != 7 || queues["x"] != 4 || queues["y"] != 1 || state.Bytes == 0 || state.Created.IsZero() {
		t.Errorf("state %+v, queues %v: %v", state, queues, err)
	}
	if n, err := r.Purge(t.Context(), "", 6); n != 3 || err != nil {
		t.Errorf("purged %d: %v", n, err)
	}
	if all, _ := readAll(t, r, "", 10, 1<<20); len(all) != 2 {
		t.Errorf("%q are left", all)
	}
	if ids, err := l.StreamIDs(patient(t)); len(ids) > 0 || err != nil {
		t.Errorf("streams of events: %v: %v", ids, err)
	}
	retain(t, retained(t, l, "other"), "x", "0")
	if states, err := l.RetainedStates(patient(t), "kept-"); err != nil || len(states) != 1 || states[0].ID != "kept-a" || states[0].Messages != 2 {
		t.Errorf("states %+v: %v", states, err)
	}

	// A deleted stream is created again by the next append, and its messages are synced.
	if err := r.DeleteStream(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.DeleteStream(t.Context()); err != nil {
		t.Error(err)
	}
	retain(t, r, "x", "again")
	if second, _, err := r.State(t.Context()); err != nil || second.Last != 1 || second.Created.Equal(state.Created) {
		t.Errorf("state of a new stream %+v: %v", second, err)
	}
}

// TestRetainedTogether stores records of one append, and of concurrent ones, in common messages, in their order, except for a record that is
// alone. The sizes of several users add up.
func TestRetainedTogether(t *testing.T) {
	t.Parallel()
	l := open(t, Options{Dir: t.TempDir()})
	r := retained(t, l, "kept")
	if err := r.AppendTogether(t.Context(), Record{Data: []byte("0")}, Record{Data: []byte("1")}, Record{Data: []byte("2"), Alone: true}, Record{Data: []byte("3")}); err != nil {
		t.Fatal(err)
	}
	messages, next, err := r.Read(t.Context(), "", 1, 10, 1<<20)
	if err != nil || next != 0 {
		t.Fatalf("next is %d: %v", next, err)
	}
	var all []string
	for _, m := range messages {
		all = append(all, string(bytes.Join(m.Records, []byte("+"))))
	}
	if !slices.Equal(all, []string{"0+1", "2", "3"}) {
		t.Errorf("messages %q", all)
	}
	other := retained(t, l, "other")
	if _, started, err := other.Start(Record{Data: []byte("0")}); started || err != nil {
		t.Errorf("an append to a stream that does not exist was started: %v, %v", started, err)
	}
	if err := other.AppendTogether(t.Context(), Record{Data: []byte("0")}); err != nil {
		t.Fatal(err)
	}
	pending, started, err := other.Start(Record{Data: []byte("1")})
	if !started || err != nil || pending.Wait(t.Context()) != nil {
		t.Errorf("started %v: %v", started, err)
	}
	if all, _ := readAll(t, other, "", 10, 1<<20); !slices.Equal(all, []string{"0", "1"}) {
		t.Errorf("read %q", all)
	}
	if _, started, err := other.Start(Record{Data: make([]byte, 100<<20)}); started || !errors.Is(err, ErrTooLarge) {
		t.Errorf("an append of 100 MiB was started: %v, %v", started, err)
	}
	l.SetRetainedBytes("a", 10)
	l.SetRetainedBytes("b", 5)
	l.SetRetainedBytes("a", 2)
	if got := l.retainedBytes.Load(); got != 7 {
		t.Errorf("%d bytes are retained, want 7", got)
	}
}

// TestRetainedCreatedOnce creates a stream once for many appends that are the first at the same time.
func TestRetainedCreatedOnce(t *testing.T) {
	t.Parallel()
	l := open(t, Options{Dir: t.TempDir()})
	session, err := l.server.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r := retained(t, l, "kept")
	requests, err := session.Conn.SubscribeSync("$JS.API.STREAM.CREATE." + r.names.Name())
	if err != nil {
		t.Fatal(err)
	}
	var appends sync.WaitGroup
	for range 100 {
		appends.Go(func() {
			if err := r.Append(t.Context(), Record{Data: []byte("x")}); err != nil {
				t.Error(err)
			}
		})
	}
	appends.Wait()
	if err := session.Conn.Flush(); err != nil {
		t.Fatal(err)
	}
	if n, _, err := requests.Pending(); n != 1 || err != nil {
		t.Errorf("%d requests, %v, want 1", n, err)
	}
	if all, _ := readAll(t, r, "", 1000, 1<<20); len(all) != 100 {
		t.Errorf("%d messages, want 100", len(all))
	}
}

// TestRetainedReplicas reads on every replica what one of them appended, also after the loss of that one.
func TestRetainedReplicas(t *testing.T) {
	t.Parallel()
	o := cluster(t, 3)
	logs := []*Log{open(t, o[0]), open(t, o[1]), open(t, o[2])}
	var data []string
	for i := range 20 {
		data = append(data, fmt.Sprint(i))
	}
	eventually(t, "messages are stored", func() bool {
		return retained(t, logs[0], "kept-a").Append(t.Context(), Record{Queue: "x", Data: []byte(data[0])}) == nil
	})
	retain(t, retained(t, logs[0], "kept-a"), "x", data[1:]...)
	eventually(t, "three servers hold the stream", func() bool {
		stream, err := logs[0].server.Current().JetStream.Stream(t.Context(), retained(t, logs[0], "kept-a").names.Name())
		return err == nil && stream.CachedInfo().Config.Replicas == 3
	})
	closed(t, logs[0])
	for _, l := range logs[1:] {
		r := retained(t, l, "kept-a")
		eventually(t, "another replica has the messages", func() bool {
			messages, next, err := r.Read(t.Context(), "", 1, 100, 1<<20)
			return err == nil && next == 0 && len(messages) >= 20 && string(messages[len(messages)-1].Records[0]) == "19"
		})
	}
}
