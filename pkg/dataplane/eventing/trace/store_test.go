package trace

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// open returns a Store in a directory until the test ends.
func open(t testing.TB, options Options) *Store {
	t.Helper()
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	options.Logger = logr.Discard()
	s, err := Open(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// written waits until all records are on disk.
func written(t testing.TB, s *Store) {
	t.Helper()
	if err := s.written(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// add adds the acceptance of an event in a namespace, and one attempt with an outcome.
func add(s *Store, namespace, id string, outcome Outcome) {
	for _, r := range []Record{acceptanceOf(id), attemptOf(id, outcome)} {
		r.Stream.Namespace = namespace
		s.Add(&r)
	}
}

// find returns the records of a query in short form.
func find(t testing.TB, s *Store, q Query) (found []string) {
	t.Helper()
	records, more, err := s.Find(t.Context(), q)
	if err != nil || more {
		t.Fatalf("find %+v: more %t, %v", q, more, err)
	}
	for _, r := range records {
		what := "accepted"
		if r.Attempt != nil {
			what = "attempted"
		}
		found = append(found, fmt.Sprintf("%s %s%s", what, r.ID, r.Source))
	}
	return found
}

func expect(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestFind finds the records of an event by ID, source, stream and trace, in one namespace.
func TestFind(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir()})
	for i := range 1000 {
		add(s, "shop", strconv.Itoa(i), Delivered)
	}
	add(s, "billing", "7", Delivered)
	other := acceptanceOf("7")
	other.Source, other.Stream.Name, other.StreamUID, other.Acceptance.TraceID, other.Accepted = "/other", "returns", "uid", strings.Repeat("a", 32), time.Unix(9, 0)
	s.Add(&other)

	first := []string{"accepted 7/s", "attempted 7/s"}
	expect(t, find(t, s, Query{Namespace: "shop", ID: "7"}), append(slices.Clone(first), "accepted 7/other")...)
	expect(t, find(t, s, Query{Namespace: "shop", ID: "7", Source: "/s"}), first...)
	expect(t, find(t, s, Query{Namespace: "shop", ID: "7", Stream: acceptanceOf("").Stream}), first...)
	expect(t, find(t, s, Query{Namespace: "shop", ID: "7", StreamUID: "uid"}), "accepted 7/other")
	expect(t, find(t, s, Query{Namespace: "shop", ID: "7", Accepted: time.Unix(9, 0)}), "accepted 7/other")
	expect(t, find(t, s, Query{Namespace: "shop", TraceID: strings.Repeat("a", 32)}), "accepted 7/other")
	expect(t, find(t, s, Query{Namespace: "billing", ID: "7"}), first...)
	expect(t, find(t, s, Query{Namespace: "billing", ID: "8"}))
	expect(t, find(t, s, Query{Namespace: "nowhere", ID: "7"}))
	expect(t, find(t, s, Query{Namespace: "shop", ID: strings.Repeat("7", 1<<20)}))
	for _, q := range []Query{{Namespace: "shop"}, {Namespace: "shop", TraceID: "x"}, {Namespace: "shop", TraceID: strings.Repeat("0", 32)}} {
		if _, _, err := s.Find(t.Context(), q); !errors.Is(err, errQuery) {
			t.Errorf("find %+v: %v", q, err)
		}
	}
}

// TestMany returns the newest of too many records.
func TestMany(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir()})
	for range MaxFound {
		add(s, "shop", "same", Delivered)
	}
	last := acceptanceOf("same")
	last.Source = "/last"
	s.Add(&last)
	records, more, err := s.Find(t.Context(), Query{Namespace: "shop", ID: "same"})
	if err != nil || !more || len(records) != MaxFound || records[MaxFound-1].Source != "/last" {
		t.Errorf("got %d records, more %t, %v", len(records), more, err)
	}
}

// TestManyBytes returns the newest of too large records.
func TestManyBytes(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir()})
	large := acceptanceOf("same")
	for range maxNamed {
		large.Acceptance.Matched = append(large.Acceptance.Matched, eventing.Key{Kind: eventing.Trigger, Namespace: "shop", Name: strings.Repeat("t", 253)})
	}
	for range 100 {
		s.Add(&large)
		written(t, s)
	}
	records, more, err := s.Find(t.Context(), Query{Namespace: "shop", ID: "same"})
	if size := len(AppendRecords(nil, records)); err != nil || !more || size > maxFoundBytes+maxRecord || len(records) == 0 {
		t.Errorf("got %d records of %d bytes, more %t, %v", len(records), size, more, err)
	}
}

// TestReopen finds records after the Store was closed, and after the process was killed: in segments with and without an index, also if
// the last block is not complete.
func TestReopen(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{Dir: dir, MaxBytes: 2 << 20})
	for i := range 20_000 {
		add(s, "shop", strconv.Itoa(i), Delivered)
		if i%1000 == 0 {
			written(t, s)
		}
	}
	written(t, s)
	data, err := filepath.Glob(filepath.Join(dir, "shop", "*"+dataSuffix))
	if err != nil || len(data) < 3 {
		t.Fatalf("got %d segments, %v; want several", len(data), err)
	}
	check := func(t *testing.T, dir string, last bool) {
		t.Helper()
		s := open(t, Options{Dir: dir, MaxBytes: 2 << 20})
		for _, i := range []int{0, 1, 9_999, 18_999} {
			id := strconv.Itoa(i)
			expect(t, find(t, s, Query{Namespace: "shop", ID: id}), "accepted "+id+"/s", "attempted "+id+"/s")
		}
		if last {
			expect(t, find(t, s, Query{Namespace: "shop", ID: "19999"}), "accepted 19999/s", "attempted 19999/s")
		}
		add(s, "shop", "more", Delivered)
		expect(t, find(t, s, Query{Namespace: "shop", ID: "more"}), "accepted more/s", "attempted more/s")
	}
	copied := func(t *testing.T) string {
		t.Helper()
		to := t.TempDir()
		if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		return to
	}
	name := filepath.Base(data[len(data)-1])
	t.Run("killed", func(t *testing.T) { check(t, copied(t), true) })
	t.Run("torn", func(t *testing.T) {
		dir := copied(t)
		path := filepath.Join(dir, "shop", name)
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, info.Size()-1); err != nil {
			t.Fatal(err)
		}
		check(t, dir, false)
	})
	t.Run("garbage", func(t *testing.T) {
		dir := copied(t)
		file, err := os.OpenFile(filepath.Join(dir, "shop", name), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = file.WriteString(strings.Repeat("garbage", 100))
		if err = errors.Join(err, file.Close()); err != nil {
			t.Fatal(err)
		}
		check(t, dir, true)
	})
	t.Run("without an index", func(t *testing.T) {
		dir := copied(t)
		if err := os.Remove(filepath.Join(dir, "shop", strings.TrimSuffix(filepath.Base(data[0]), dataSuffix)+indexSuffix)); err != nil {
			t.Fatal(err)
		}
		check(t, dir, true)
	})
	t.Run("damaged index", func(t *testing.T) {
		dir := copied(t)
		if err := os.WriteFile(filepath.Join(dir, "shop", strings.TrimSuffix(filepath.Base(data[0]), dataSuffix)+indexSuffix), []byte("?"), 0o600); err != nil {
			t.Fatal(err)
		}
		check(t, dir, true)
	})
	t.Run("leftovers", func(t *testing.T) {
		dir := copied(t)
		for _, left := range []string{segmentName(time.Unix(1, 0)) + newSuffix, segmentName(time.Unix(1, 0)) + indexSuffix} {
			if err := os.WriteFile(filepath.Join(dir, "shop", left), []byte("?"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		check(t, dir, true)
		if left, _ := filepath.Glob(filepath.Join(dir, "shop", segmentName(time.Unix(1, 0))+"*")); len(left) > 0 {
			t.Errorf("kept %q", left)
		}
	})
	t.Run("closed", func(t *testing.T) {
		s.Close()
		check(t, dir, true)
	})
}

// TestRetention deletes records after the retention time, and then all that a namespace takes.
func TestRetention(t *testing.T) {
	dir, now := t.TempDir(), testingclock.NewFakePassiveClock(time.Unix(1_000_000, 0))
	s := open(t, Options{Dir: dir, Retention: time.Hour, Clock: now})
	add(s, "shop", "old", Delivered)
	written(t, s)
	now.SetTime(now.Now().Add(30 * time.Minute))
	add(s, "shop", "new", Delivered)
	written(t, s)
	expect(t, find(t, s, Query{Namespace: "shop", ID: "old"}), "accepted old/s", "attempted old/s")
	now.SetTime(now.Now().Add(45 * time.Minute))
	eventually(t, func() bool { return len(find(t, s, Query{Namespace: "shop", ID: "old"})) == 0 })
	expect(t, find(t, s, Query{Namespace: "shop", ID: "new"}), "accepted new/s", "attempted new/s")
	now.SetTime(now.Now().Add(time.Hour))
	eventually(t, func() bool {
		_, err := os.Stat(filepath.Join(dir, "shop"))
		return errors.Is(err, os.ErrNotExist) && s.find("shop") == nil
	})
	add(s, "shop", "again", Delivered)
	expect(t, find(t, s, Query{Namespace: "shop", ID: "again"}), "accepted again/s", "attempted again/s")
}

// eventually waits until a condition is true.
func eventually(t *testing.T, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !condition(); <-time.After(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the condition does not become true")
		}
	}
}

// TestEvict deletes the oldest records of the namespace with most of them, and counts them, while others keep theirs.
func TestEvict(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir(), MaxBytes: 512 << 10})
	add(s, "small", "1", Delivered)
	written(t, s)
	for i := range 100_000 {
		add(s, "large", strconv.Itoa(i), Delivered)
		if i%1000 == 999 {
			written(t, s)
			if bytes := s.bytesOnDisk(t); bytes > 600<<10 {
				t.Fatalf("the records take %d bytes", bytes)
			}
		}
	}
	expect(t, find(t, s, Query{Namespace: "small", ID: "1"}), "accepted 1/s", "attempted 1/s")
	expect(t, find(t, s, Query{Namespace: "large", ID: "99999"}), "accepted 99999/s", "attempted 99999/s")
	expect(t, find(t, s, Query{Namespace: "large", ID: "0"}))
	if large, small := s.find("large").evicted.Load(), s.find("small").evicted.Load(); large < 100_000 || small != 0 {
		t.Errorf("evicted %d records of the large namespace, %d of the small one", large, small)
	}
}

// bytesOnDisk returns the size of all files.
func (s *Store) bytesOnDisk(t *testing.T) (total int64) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(s.options.Dir, "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if info, err := os.Stat(file); err == nil {
			total += info.Size()
		}
	}
	return total
}

// TestQueueFull drops and counts records while nothing is written. Failures have room that successes have not, and a namespace has room
// that others have not.
func TestQueueFull(t *testing.T) {
	s := &Store{wake: make(chan struct{}, 1), tenants: map[string]*tenant{}}
	n := 0
	dropped := func(namespace string) int64 {
		found := s.tenant(namespace)
		return found.dropped.Load()
	}
	for ; dropped("shop") == 0; n++ {
		add(s, "shop", "success", Delivered)
	}
	before := dropped("shop")
	failure := attemptOf("failure", Dropped)
	s.Add(&failure)
	if dropped("shop") != before {
		t.Error("dropped a failure with the first successes")
	}
	for i := 0; dropped("shop") == before; i++ {
		if s.Add(&failure); i > n {
			t.Fatal("the queue is not bounded")
		}
	}
	add(s, "billing", "success", Delivered)
	if dropped("billing") != 0 {
		t.Error("dropped the records of another namespace")
	}
	if queued := s.queued.Load(); queued > maxQueued {
		t.Errorf("%d bytes wait", queued)
	}
}

// TestWriteFails drops and counts records that cannot be written, and goes on afterwards.
func TestWriteFails(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{Dir: dir})
	written(t, s)
	if err := os.WriteFile(filepath.Join(dir, "shop"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	add(s, "shop", "1", Delivered)
	expect(t, find(t, s, Query{Namespace: "shop", ID: "1"}))
	if n := s.find("shop").dropped.Load(); n != 2 {
		t.Errorf("dropped %d records, want 2", n)
	}
	if err := os.Remove(filepath.Join(dir, "shop")); err != nil {
		t.Fatal(err)
	}
	add(s, "shop", "2", Delivered)
	expect(t, find(t, s, Query{Namespace: "shop", ID: "2"}), "accepted 2/s", "attempted 2/s")
}

// TestNil records nothing without a Store.
func TestNil(t *testing.T) {
	var s *Store
	add(s, "shop", "1", Delivered)
	expect(t, find(t, s, Query{Namespace: "shop", ID: "1"}))
	s.Close()
}
