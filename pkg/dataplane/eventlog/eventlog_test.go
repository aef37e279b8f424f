package eventlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/consume"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/layout"
	"github.com/knative-apiserver/knative-apiserver/test/natstest"
)

const (
	patience = 2 * time.Minute
	// ackTimeout is the time after which a server that is not in the process of the log has not acknowledged records.
	ackTimeout = 4 * time.Second
)

// patient returns a context with a deadline. A request without one ends after 5 s.
func patient(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func open(t testing.TB, o Options) *Log {
	t.Helper()
	if tt, ok := t.(*testing.T); ok && testing.Verbose() {
		o.Logger = testr.New(tt)
	}
	began := time.Now()
	l, err := Open(t.Context(), o)
	for o.URL != "" && err != nil && time.Since(began) > ackTimeout && time.Since(began) < patience {
		// The server may have been too slow.
		l, err = Open(t.Context(), o)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed(t, l) })
	return l
}

// closed closes a log. A server of a slow process may not confirm the acknowledgements in time.
func closed(t testing.TB, l *Log) {
	t.Helper()
	if err := l.Close(); err != nil && !errors.Is(err, nats.ErrTimeout) {
		t.Errorf("close: %v", err)
	}
}

func stream(t testing.TB, l *Log, id string) *Stream {
	t.Helper()
	s, err := l.Stream(patient(t), StreamConfig{ID: id, Description: "Broker default/" + id})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func appendAll(t testing.TB, s *Stream, queue string, data ...string) {
	t.Helper()
	for _, d := range data {
		if err := appendTo(t.Context(), s, Record{Queue: queue, Data: []byte(d)}); err != nil {
			t.Fatal(err)
		}
	}
}

// appendTo appends records, again if the server did not acknowledge them in time. Records that are appended again may be stored twice.
func appendTo(ctx context.Context, s *Stream, records ...Record) error {
	first := time.Now()
	for {
		began := time.Now()
		err := s.Append(ctx, records...)
		if !errors.Is(err, ErrUnavailable) || time.Since(began) < ackTimeout || time.Since(first) > patience {
			return err
		}
	}
}

// filled returns a new stream with records in the shared queue, each of which is stored once.
func filled(t testing.TB, l *Log, id string, data ...string) *Stream {
	t.Helper()
	for range 10 {
		s := stream(t, l, id)
		appendAll(t, s, "", data...)
		if queues(t, s)[""] == uint64(len(data)) {
			return s
		}
		if err := l.DeleteStream(patient(t), id); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("records are stored more than once each time")
	return nil
}

// repeats returns a handler that acknowledges segments which were stored again by appendTo or by the log, and passes others to handle. The
// server in the process of the log stores none again.
func repeats(s *Stream, handle func(*Segment)) func(*Segment) {
	if s.log.opts.URL == "" && s.log.opts.Cluster == nil {
		return handle
	}
	first := map[string]time.Time{}
	return func(f *Segment) {
		key := f.Queue + ":" + string(bytes.Join(f.Records, []byte("\n")))
		if before, found := first[key]; found && !before.Equal(f.Accepted) {
			f.Ack()
			return
		}
		first[key] = f.Accepted
		handle(f)
	}
}

// sink collects the segments of a consumer.
type sink struct {
	segments chan *Segment
}

func start(t testing.TB, s *Stream, queue string, o ConsumeOptions) (*sink, *Consumer) {
	t.Helper()
	k := &sink{segments: make(chan *Segment, 10000)}
	c, err := s.Consume(queue, o, repeats(s, func(f *Segment) { k.segments <- f }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	return k, c
}

func (k *sink) next(t testing.TB) *Segment {
	t.Helper()
	select {
	case f := <-k.segments:
		return f
	case <-time.After(patience):
		t.Fatal("no segment came")
		return nil
	}
}

func (k *sink) none(t testing.TB, within time.Duration) {
	t.Helper()
	select {
	case f := <-k.segments:
		t.Fatalf("a segment of %d records was delivered in attempt %d, want none", len(f.Records), f.Attempt)
	case <-time.After(within):
	}
}

// collect acknowledges n records.
func (k *sink) collect(t testing.TB, n int) []string {
	t.Helper()
	var all []string
	for len(all) < n {
		f := k.next(t)
		for _, r := range f.Records {
			all = append(all, string(r))
		}
		f.Ack()
	}
	return all
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not the case after %v", what, patience)
		}
		<-time.After(20 * time.Millisecond)
	}
}

func queues(t testing.TB, s *Stream) map[string]uint64 {
	t.Helper()
	q, err := s.Queues(patient(t))
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func numbers(from, to int) []string {
	var all []string
	for i := from; i < to; i++ {
		all = append(all, strconv.Itoa(i))
	}
	return all
}

// eventing Event Acknowledgement and Delivery Retry: accepted events are stored until they are delivered.
func TestLog(t *testing.T) {
	external := natstest.Start(t, natstest.Options{})
	servers := map[string]func(t *testing.T) Options{
		"embedded": func(t *testing.T) Options { return Options{Dir: t.TempDir()} },
		"external": func(t *testing.T) Options {
			return Options{URL: external.URL(), Installation: fmt.Sprint(time.Now().UnixNano())}
		},
	}
	tests := map[string]func(t *testing.T, o Options){
		"order":        testOrder,
		"nack":         testNack,
		"group commit": testGroupCommit,
		"queues":       testQueues,
		"late appends": testLateAppends,
		"window":       testWindow,
		"stop":         testStop,
		"streams":      testStreams,
		"memory":       testMemory,
		"full":         testFull,
		"too large":    testTooLarge,
		"reopen":       testReopen,
		"idempotence":  testDoneOnce,
		"long handle":  testLongHandle,
		"no consumer":  testConsumerDeleted,
		"rejected":     testRejected,
	}
	for server, options := range servers {
		for name, test := range tests {
			t.Run(server+"/"+name, func(t *testing.T) {
				t.Parallel()
				test(t, options(t))
			})
		}
	}
}

func testOrder(t *testing.T, o Options) {
	s := stream(t, open(t, o), "a")
	appendAll(t, s, "", numbers(0, 20)...)
	k, _ := start(t, s, "", ConsumeOptions{})
	before := time.Now()
	appendAll(t, s, "", numbers(20, 40)...)
	if diff := cmp.Diff(numbers(0, 40), k.collect(t, 40)); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	if err := appendTo(t.Context(), s, Record{Data: []byte("x")}, Record{Data: nil}, Record{Data: []byte("z"), Alone: true}, Record{Data: []byte("last")}); err != nil {
		t.Fatal(err)
	}
	f := k.next(t)
	if diff := cmp.Diff([][]byte{[]byte("x"), {}}, f.Records); diff != "" {
		t.Errorf("records of a segment (-want +got):\n%s", diff)
	}
	if f.Attempt != 1 && time.Since(before) < consume.LocalAckWait || f.Queue != "" || f.Accepted.Before(before.Add(-time.Second)) {
		t.Errorf("segment has attempt %d, queue '%s', accepted %v", f.Attempt, f.Queue, f.Accepted)
	}
	f.Ack()
	if f := k.next(t); len(f.Records) != 1 || string(f.Records[0]) != "z" {
		t.Errorf("record with Alone is in %q", f.Records)
	}
	if f := k.next(t); len(f.Records) != 1 || string(f.Records[0]) != "last" {
		t.Errorf("record after one with Alone is in %q", f.Records)
	}
}

func testNack(t *testing.T, o Options) {
	s := stream(t, open(t, o), "a")
	k, _ := start(t, s, "", ConsumeOptions{})
	appendAll(t, s, "", "x")
	first, before := k.next(t), time.Now()
	first.Nack(0)
	f := k.next(t)
	if f.Attempt <= first.Attempt {
		t.Errorf("attempt is %d after %d", f.Attempt, first.Attempt)
	}
	for {
		nacked := time.Now()
		f.Nack(700 * time.Millisecond)
		next := k.next(t)
		took := time.Since(nacked)
		if next.Attempt <= f.Attempt {
			t.Errorf("attempt is %d after %d", next.Attempt, f.Attempt)
		}
		f = next
		if took >= 500*time.Millisecond {
			break
		}
		// If the process is paused, the server also redelivers the segment because of the time that it waits.
		if time.Since(before) < consume.LocalAckWait {
			t.Errorf("the segment was redelivered after %v, want 700 ms", took)
			break
		}
		before = nacked
	}
	f.Ack()
	eventually(t, "segment is removed", func() bool { return len(queues(t, s)) == 0 })
}

func testDoneOnce(t *testing.T, o Options) {
	s := stream(t, open(t, o), "a")
	k, c := start(t, s, "", ConsumeOptions{})
	appendAll(t, s, "", "x", "y")
	first, second := k.next(t), k.next(t)
	first.Ack()
	first.Nack(0)
	first.Ack()
	eventually(t, "the first segment is removed", func() bool { return queues(t, s)[""] == 1 })
	c.Stop()
	second.Ack()
	eventually(t, "segments are removed, also after Stop", func() bool { return len(queues(t, s)) == 0 })
	k.none(t, 200*time.Millisecond)
}

func testGroupCommit(t *testing.T, o Options) {
	s := stream(t, open(t, o), "a")
	const appenders, each = 64, 10
	var wg sync.WaitGroup
	for a := range appenders {
		wg.Go(func() {
			data := make([]byte, 0, 16)
			for i := range each {
				data = fmt.Appendf(data[:0], "%d/%d", a, i)
				if err := appendTo(t.Context(), s, Record{Data: data}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	segments := queues(t, s)[""]
	if segments == 0 || segments > appenders*each/2 {
		t.Errorf("%d appends at once took %d segments, want few", appenders*each, segments)
	}
	k, _ := start(t, s, "", ConsumeOptions{})
	var got []string
	for seen := sets.New[string](); len(got) < appenders*each; {
		for _, r := range k.collect(t, 1) {
			if o.URL == "" || !seen.Has(r) {
				got = append(got, r)
			}
			seen.Insert(r)
		}
	}
	for a := range appenders {
		i := -1
		for j := range each {
			next := slices.Index(got, fmt.Sprintf("%d/%d", a, j))
			if next <= i {
				t.Fatalf("record %d of appender %d is missing or out of order", j, a)
			}
			i = next
		}
	}
}

func testQueues(t *testing.T, o Options) {
	s := stream(t, open(t, o), "a")
	// Few messages are written one by one, many as an atomic batch.
	for _, n := range []int{3, 40, 600} {
		records := []Record{{Data: []byte("event")}}
		for i := range n {
			records = append(records, Record{Queue: "q" + strconv.Itoa(i), Data: []byte(strconv.Itoa(i))})
		}
		if err := appendTo(t.Context(), s, records...); err != nil {
			t.Fatal(err)
		}
		// Records that were appended again are stored twice.
		once := func(segments uint64) bool { return segments == 1 || segments > 1 && o.URL != "" }
		if got := queues(t, s); len(got) != n+1 || !once(got[""]) || !once(got["q1"]) {
			t.Errorf("%d queues with segments, want %d: %v", len(got), n+1, got[""])
		}
		k, c := start(t, s, "q2", ConsumeOptions{})
		if f := k.next(t); string(f.Records[0]) != "2" || f.Queue != "q2" {
			t.Errorf("record %q of queue '%s' was delivered, want 2 of q2", f.Records, f.Queue)
		}
		c.Stop()
		if n == 3 {
			if err := s.DeleteQueue(patient(t), "q2"); err != nil {
				t.Fatal(err)
			}
			if got := queues(t, s); len(got) != 3 || !once(got[""]) || !once(got["q0"]) || !once(got["q1"]) {
				t.Errorf("queues after one was deleted: %v, want one segment in each other", got)
			}
			if err := s.DeleteQueue(patient(t), "q2"); err != nil {
				t.Errorf("deleting a deleted queue: %v", err)
			}
		}
		for queue := range queues(t, s) {
			if n < 600 {
				if err := s.DeleteQueue(patient(t), queue); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// Appends whose caller stopped waiting store nothing in a queue after it was deleted.
func testLateAppends(t *testing.T, o Options) {
	s := stream(t, open(t, o), "a")
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	records := make([]Record, 40)
	for i := range records {
		records[i] = Record{Queue: "q", Data: make([]byte, 512<<10), Alone: true}
	}
	began := time.Now()
	// Each of them needs a batch, and is written after the previous one.
	for range 3 {
		if err := s.Append(canceled, records...); err != nil && !errors.Is(err, context.Canceled) && (o.URL == "" || !errors.Is(err, ErrUnavailable)) {
			t.Fatal(err)
		}
	}
	if err := s.DeleteQueue(patient(t), "q"); err != nil {
		t.Fatal(err)
	}
	appendAll(t, s, "", "last")
	// Records that a server at a URL did not acknowledge in time may be stored later.
	if left := queues(t, s)["q"]; left != 0 && (o.URL == "" || time.Since(began) < ackTimeout) {
		t.Errorf("%d segments are in the queue after it was deleted", left)
	}
}

func testWindow(t *testing.T, o Options) {
	s := stream(t, open(t, o), "a")
	appendAll(t, s, "", numbers(0, 30)...)
	k, _ := start(t, s, "", ConsumeOptions{MaxSegments: 8})
	var held []*Segment
	for range 8 {
		held = append(held, k.next(t))
	}
	k.none(t, 300*time.Millisecond)
	for _, f := range held {
		f.Ack()
	}
	if got := k.collect(t, 22); got[21] != "29" {
		t.Errorf("last record is %s, want 29", got[21])
	}
	// Of segments of 100 KiB, 250 KiB take two; one that is larger than the bound comes alone.
	sizes := []int{100, 100, 100, 100, 300, 100}
	for i, kib := range sizes {
		appendAll(t, s, "q", fmt.Sprintf("%0*d", kib<<10, i))
	}
	k, _ = start(t, s, "q", ConsumeOptions{MaxBytes: 250 << 10})
	first, second := k.next(t), k.next(t)
	k.none(t, 300*time.Millisecond)
	first.Ack()
	second.Ack()
	for range sizes[2:] {
		k.next(t).Ack()
	}
}

func testStop(t *testing.T, o Options) {
	s := filled(t, open(t, o), "a", numbers(0, 10)...)
	ackWait := consume.LocalAckWait
	if o.URL != "" {
		ackWait = consume.RemoteAckWait
	}
	consumed := time.Now()
	began, release := make(chan struct{}), make(chan struct{})
	var delivered []*Segment
	c, err := s.Consume("", ConsumeOptions{}, func(f *Segment) {
		delivered = append(delivered, f)
		began <- struct{}{}
		<-release
	})
	if err != nil {
		t.Fatal(err)
	}
	<-began
	c.Stop()
	c.Stop()
	close(release)
	k, _ := start(t, s, "", ConsumeOptions{})
	got := map[string]bool{}
	for len(got) < 10 {
		f := k.next(t)
		record := string(f.Records[0])
		if record == "0" && !got[record] {
			// Its progress is no longer reported.
			if waited := time.Since(consumed); waited < ackWait-100*time.Millisecond {
				t.Errorf("the delivered segment was redelivered after %v, want %v", waited, ackWait)
			}
			if f.Attempt < 2 {
				t.Errorf("the delivered segment was redelivered in attempt %d, want 2", f.Attempt)
			}
		}
		got[record] = true
		f.Ack()
	}
	if len(delivered) != 1 {
		t.Errorf("%d segments were delivered by the stopped consumer, want 1", len(delivered))
	}
}

func testLongHandle(t *testing.T, o Options) {
	s := stream(t, open(t, o), "a")
	k, _ := start(t, s, "", ConsumeOptions{})
	appendAll(t, s, "", "x")
	f := k.next(t)
	ackWait := consume.LocalAckWait
	if o.URL != "" {
		ackWait = consume.RemoteAckWait
	}
	k.none(t, ackWait+2*time.Second)
	f.Ack()
	eventually(t, "segment is removed", func() bool { return len(queues(t, s)) == 0 })
}

// Rejected segments block others only if one is delivered at a time.
func testRejected(t *testing.T, o Options) {
	s := stream(t, open(t, o), "a")
	k, _ := start(t, s, "", ConsumeOptions{MaxSegments: 2})
	one, _ := start(t, s, "ordered", ConsumeOptions{MaxSegments: 1})
	for _, queue := range []string{"", "ordered"} {
		appendAll(t, s, queue, "a", "b", "c")
	}
	for range 2 {
		k.next(t).Nack(time.Hour)
	}
	// If the process is paused, a segment may be redelivered before it is rejected.
	for f := k.next(t); string(f.Records[0]) != "c"; f = k.next(t) {
		f.Nack(time.Hour)
	}
	one.next(t).Nack(time.Hour)
	for wait := time.After(300 * time.Millisecond); ; {
		select {
		case f := <-one.segments:
			if string(f.Records[0]) != "a" {
				t.Errorf("record %s was delivered, want a", f.Records[0])
			}
			f.Nack(time.Hour)
			continue
		case <-wait:
		}
		break
	}
}

// A consumer that is deleted at the server is created again immediately, also while a segment is unacknowledged for long.
func testConsumerDeleted(t *testing.T, o Options) {
	s := stream(t, open(t, o), "a")
	k, _ := start(t, s, "", ConsumeOptions{MaxSegments: 2})
	appendAll(t, s, "", "a", "b")
	a, b := k.next(t), k.next(t)
	a.Ack()
	eventually(t, "segment is removed", func() bool { return queues(t, s)[""] == 1 })
	js := s.log.server.Current().JetStream
	// A server that receives a request while it deletes the consumer does not respond.
	eventually(t, "the next request waits", func() bool {
		consumer, err := js.Consumer(patient(t), s.names.Name(), layout.Consumer(""))
		return err == nil && consumer.CachedInfo().NumWaiting == 1
	})
	if err := js.DeleteConsumer(patient(t), s.names.Name(), layout.Consumer("")); err != nil {
		t.Fatal(err)
	}
	appendAll(t, s, "", "c")
	c := k.next(t)
	if string(c.Records[0]) != "c" {
		t.Errorf("record %s was delivered, want c", c.Records[0])
	}
	c.Ack()
	b.Ack()
	eventually(t, "segments are removed", func() bool { return len(queues(t, s)) == 0 })
}

func testStreams(t *testing.T, o Options) {
	l := open(t, o)
	a := stream(t, l, "a")
	stream(t, l, "b")
	if other := stream(t, l, "a"); other != a {
		t.Error("a second Stream of the same ID")
	}
	ids := func() []string {
		ids, err := l.StreamIDs(patient(t))
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(ids)
		return ids
	}
	if diff := cmp.Diff([]string{"a", "b"}, ids()); diff != "" {
		t.Errorf("streams (-want +got):\n%s", diff)
	}
	for range 2 {
		if err := l.DeleteStream(patient(t), "a"); err != nil {
			t.Errorf("delete: %v", err)
		}
	}
	if diff := cmp.Diff([]string{"b"}, ids()); diff != "" {
		t.Errorf("streams (-want +got):\n%s", diff)
	}
	if err := a.Append(t.Context(), Record{}); !errors.Is(err, ErrClosed) {
		t.Errorf("append to a deleted stream: %v, want ErrClosed", err)
	}
	if _, err := a.Consume("", ConsumeOptions{}, func(*Segment) {}); !errors.Is(err, ErrClosed) {
		t.Errorf("consume a deleted stream: %v, want ErrClosed", err)
	}
	if _, err := l.Stream(t.Context(), StreamConfig{ID: "a.b"}); err == nil {
		t.Error("a stream with a dot in its ID was accepted")
	}
	// Streams of another installation are not listed.
	if o.URL != "" {
		o.Installation += "x"
		if ids, err := open(t, o).StreamIDs(patient(t)); err != nil || len(ids) != 0 {
			t.Errorf("streams of another installation: %v, %v", ids, err)
		}
	}
}

func testMemory(t *testing.T, o Options) {
	l := open(t, o)
	s, err := l.Stream(patient(t), StreamConfig{ID: "m", Memory: true})
	if err != nil {
		t.Fatal(err)
	}
	k, _ := start(t, s, "", ConsumeOptions{})
	appendAll(t, s, "", "x", "y")
	if diff := cmp.Diff([]string{"x", "y"}, k.collect(t, 2)); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
}

func testFull(t *testing.T, o Options) {
	o.MaxStreamBytes = 1 << 20
	s := stream(t, open(t, o), "a")
	data := func(n int) []byte { return fmt.Appendf(nil, "%0*d", 100<<10, n) }
	n := 0
	var err error
	for ; n < 20 && err == nil; n++ {
		err = appendTo(t.Context(), s, Record{Data: data(n)})
	}
	if !errors.Is(err, ErrFull) {
		t.Fatalf("append to a full stream: %v, want ErrFull", err)
	}
	k, _ := start(t, s, "", ConsumeOptions{})
	k.collect(t, n-1)
	eventually(t, "stream accepts records again", func() bool { return s.Append(t.Context(), Record{Data: data(n)}) == nil })
}

func testTooLarge(t *testing.T, o Options) {
	s := stream(t, open(t, o), "a")
	if err := s.Append(t.Context(), Record{Data: make([]byte, 17<<20)}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("append of 17 MiB: %v, want ErrTooLarge", err)
	}
	largest := int(s.log.server.Current().Conn.MaxPayload()) - layout.Overhead - layout.RecordSize(0) - 1
	appendAll(t, s, "", string(make([]byte, largest)), "small")
	k, _ := start(t, s, "", ConsumeOptions{MaxBytes: 1 << 10})
	if f := k.next(t); len(f.Records[0]) != largest {
		t.Errorf("record has %d bytes, want %d", len(f.Records[0]), largest)
	} else {
		f.Ack()
	}
	k.collect(t, 1)
}

func testReopen(t *testing.T, o Options) {
	l := open(t, o)
	s := filled(t, l, "a", "done", "delayed", "delivered", "waiting")
	ackWait := consume.LocalAckWait
	if o.URL != "" {
		ackWait = consume.RemoteAckWait
	}
	consumed := time.Now()
	// The first blocks the others of its consumer after it got three.
	k := make(chan *Segment)
	_, err := s.Consume("", ConsumeOptions{}, func(f *Segment) { k <- f })
	if err != nil {
		t.Fatal(err)
	}
	(<-k).Ack()
	(<-k).Nack(3 * time.Second)
	delayed := time.Now()
	<-k
	eventually(t, "done segment is removed", func() bool { return queues(t, s)[""] == 3 })
	closed(t, l)
	// If the process is paused, the server also redelivers segments because of the time that it waits.
	paused := time.Since(consumed) >= ackWait
	if err := s.Append(t.Context(), Record{}); !errors.Is(err, ErrClosed) {
		t.Errorf("append after Close: %v, want ErrClosed", err)
	}

	reopened, _ := start(t, stream(t, open(t, o), "a"), "", ConsumeOptions{})
	attempts := map[string]int{}
	for range 2 {
		f := reopened.next(t)
		attempts[string(f.Records[0])] = f.Attempt
		f.Ack()
	}
	f := reopened.next(t)
	attempts[string(f.Records[0])] = f.Attempt
	if elapsed := time.Since(delayed); elapsed < 1900*time.Millisecond && !paused {
		t.Errorf("delayed segment was delivered after %v", elapsed)
	}
	f.Ack()
	// The one that waited may not have been fetched before. If the process is paused, segments are redelivered more often.
	if attempts["delivered"] < 2 || attempts["waiting"] < 1 || attempts["delayed"] < 2 {
		t.Errorf("attempts %v, want 2, of the waiting one 1", attempts)
	}
	reopened.none(t, 300*time.Millisecond)
}
