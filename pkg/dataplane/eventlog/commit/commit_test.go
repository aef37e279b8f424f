package commit

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
	"k8s.io/component-base/metrics"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/layout"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/server"
)

// patient returns a context with a deadline. A request without one ends after 5 s.
func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func open(t *testing.T, dir string) *server.Server {
	t.Helper()
	s, err := server.Open(t.Context(), server.Options{
		Dir: dir, Installation: "test", Replicas: 1, Restarts: metrics.NewCounter(&metrics.CounterOpts{Name: "restarts"}),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Stop()
		// A server of a slow process may not respond in time.
		if err := s.Close(); err != nil && !errors.Is(err, nats.ErrTimeout) {
			t.Error(err)
		}
	})
	return s
}

// writer returns a writer of a new stream of the server in dir.
func writer(t *testing.T, s *server.Server, dir, id string) *Writer {
	t.Helper()
	names := layout.Stream{Installation: "test", ID: id}
	config := jetstream.StreamConfig{Name: names.Name(), Subjects: []string{names.Subjects()}, Replicas: 1}
	if _, err := s.Current().EnsureStream(patient(t), config); err != nil {
		t.Fatal(err)
	}
	counter := metrics.NewCounter(&metrics.CounterOpts{Name: "commits"})
	return New(Options{
		Server: s, Stream: names, Config: config, Dir: server.MessageDir(dir, config.Name),
		Metrics: &Metrics{Records: counter, Segments: counter, Commits: counter, Failures: counter},
	})
}

func appendAll(t *testing.T, w *Writer, data ...string) {
	t.Helper()
	for _, d := range data {
		began := time.Now()
		err := w.Append(t.Context(), Record{Data: []byte(d)})
		// A server that is restarted in a slow process may be unavailable for longer.
		for errors.Is(err, server.ErrUnavailable) && time.Since(began) >= retryFor && time.Since(began) < time.Minute {
			err = w.Append(t.Context(), Record{Data: []byte(d)})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// stored returns the records of all segments of the stream.
func stored(t *testing.T, w *Writer) (segments [][][]byte) {
	t.Helper()
	ctx := patient(t)
	stream, err := w.options.Server.Current().JetStream.Stream(ctx, w.options.Config.Name)
	if err != nil {
		t.Fatal(err)
	}
	state := stream.CachedInfo().State
	for sequence := state.FirstSeq; sequence <= state.LastSeq; sequence++ {
		msg, err := stream.GetMsg(ctx, sequence)
		if err != nil {
			t.Fatal(err)
		}
		records, err := layout.Records(msg.Data)
		if err != nil {
			t.Fatal(err)
		}
		segments = append(segments, records)
	}
	return segments
}

// An append that is larger than a batch, or than the bytes that may wait for one, is split into several batches.
func TestLargeAppend(t *testing.T) {
	dir := t.TempDir()
	w := writer(t, open(t, dir), dir, "a")
	appended := make([]Record, 20)
	for i := range appended {
		appended[i] = Record{Data: make([]byte, maxBatch/8)}
		appended[i].Data[0] = byte(i)
	}
	if n, bytes := split(appended); n >= 8 || bytes > maxBatch {
		t.Errorf("a batch has %d records of %d bytes", n, bytes)
	}
	if err := w.Append(t.Context(), appended...); err != nil {
		t.Fatal(err)
	}
	// A batch is stored again if its acknowledgement is late.
	seen := map[byte]bool{}
	for _, records := range stored(t, w) {
		if len(records) != 1 || len(records[0]) != maxBatch/8 {
			t.Fatalf("a segment has %d records", len(records))
		}
		seen[records[0][0]] = true
	}
	if len(seen) != len(appended) {
		t.Errorf("%d of %d records are stored", len(seen), len(appended))
	}
}

func TestAppendContext(t *testing.T) {
	dir := t.TempDir()
	w := writer(t, open(t, dir), dir, "a")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w.mu.Lock()
	w.committing = true // a commit that does not end
	w.mu.Unlock()
	if err := w.Append(ctx, Record{Data: []byte("x")}); !errors.Is(err, context.Canceled) {
		t.Errorf("append: %v, want context.Canceled", err)
	}
}

// Concurrent commits of two streams share the memory of their segments. Each record is stored once, as it was appended.
func TestSharedBuffers(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	writers := []*Writer{writer(t, s, dir, "a"), writer(t, s, dir, "b")}
	const appenders, appends = 8, 50
	record := func(appender, i int) string { return strings.Repeat(fmt.Sprintf("%d-%d ", appender, i), 1+i*7%100) }
	var group errgroup.Group
	for appender := range appenders {
		group.Go(func() error {
			for i := range appends {
				if err := writers[appender%len(writers)].Append(t.Context(), Record{Data: []byte(record(appender, i))}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	for i, w := range writers {
		seen := map[string]int{}
		for _, records := range stored(t, w) {
			for _, r := range records {
				seen[string(r)]++
			}
		}
		for appender := i; appender < appenders; appender += len(writers) {
			for n := range appends {
				if want := record(appender, n); seen[want] != 1 {
					t.Errorf("record '%.20s' is stored %d times in stream %d", want, seen[want], i)
				} else {
					delete(seen, want)
				}
			}
		}
		if len(seen) > 0 {
			t.Errorf("stream %d has %d records that were not appended", i, len(seen))
		}
	}
}

// Settle waits for the records of appends whose callers do not wait for them, in the batch that is written and in the batches behind it.
func TestSettle(t *testing.T) {
	dir := t.TempDir()
	w := writer(t, open(t, dir), dir, "a")
	if err := w.Settle(t.Context()); err != nil {
		t.Errorf("before the first append: %v", err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	w.mu.Lock()
	w.committing = true // a commit that has not started yet
	w.mu.Unlock()
	if err := w.Append(canceled, Record{Data: []byte("x")}); !errors.Is(err, context.Canceled) {
		t.Fatalf("append: %v, want context.Canceled", err)
	}
	if err := w.Settle(canceled); !errors.Is(err, context.Canceled) {
		t.Errorf("while a batch waits: %v, want context.Canceled", err)
	}
	w.mu.Lock()
	waiting := w.batches
	w.current, w.batches = waiting[0], nil
	w.mu.Unlock()
	if err := w.Settle(canceled); !errors.Is(err, context.Canceled) {
		t.Errorf("while a batch is written: %v, want context.Canceled", err)
	}
	w.mu.Lock()
	w.current, w.batches = nil, waiting
	w.mu.Unlock()
	go w.commit()
	if err := w.Settle(t.Context()); err != nil {
		t.Error(err)
	}
	if len(stored(t, w)) == 0 {
		t.Error("no segment is stored after Settle")
	}
}

// While the log cannot write, waiting bytes are limited, and the time of retries does not grow with the number of waiting bytes.
func TestStandstill(t *testing.T) {
	dir := t.TempDir()
	w := writer(t, open(t, dir), dir, "a")
	appendAll(t, w, "x")
	w.mu.Lock()
	if w.waiting != 0 {
		t.Errorf("%d bytes wait after all were written", w.waiting)
	}
	w.waiting = maxWaiting
	w.mu.Unlock()
	if err := w.Append(t.Context(), Record{Data: []byte("y")}); !errors.Is(err, server.ErrUnavailable) {
		t.Errorf("append while the maximum waits: %v, want ErrUnavailable", err)
	}

	// A filesystem that cannot be checked.
	w.options.Space = server.NewSpace(filepath.Join(dir, "none"), 0)
	var took time.Duration
	// The process may be paused.
	for range 3 {
		start := time.Now()
		if err := w.write(&batch{started: start.Add(-2 * retryFor)}); !errors.Is(err, server.ErrUnavailable) {
			t.Errorf("write: %v, want ErrUnavailable", err)
		}
		if took = time.Since(start); took < retryFor {
			return
		}
	}
	t.Errorf("a batch that had waited for too long was retried for %v", took)
}

// After a commit of many appends the next one begins when it is as large; after a commit of few appends it waits.
func TestGatherFor(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := writer(t, open(t, dir), dir, "gather")
	w.committing = true // nothing is committed
	appendNow := func(n int) {
		for range n {
			if _, err := w.Start(Record{Data: []byte("x")}); err != nil {
				t.Error(err)
			}
		}
	}
	const many, never, soon = few + 4, time.Hour, 20 * time.Millisecond
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.gatherFor(never, many)
	}()
	appendNow(many - 1)
	select {
	case <-ended:
		t.Error("the wait ended before as many appends waited")
	case <-time.After(soon):
	}
	appendNow(1)
	select {
	case <-ended:
	case <-patient(t).Done():
		t.Fatal("the wait did not end although as many appends wait")
	}
	w.gatherFor(never, many) // as many wait already
	for _, appends := range []int{few, many + 1} {
		began := time.Now()
		w.gatherFor(soon, appends)
		if took := time.Since(began); took < soon {
			t.Errorf("after a commit of %d appends, with %d that wait: waited for %v, want %v", appends, many, took, soon)
		}
	}
}
