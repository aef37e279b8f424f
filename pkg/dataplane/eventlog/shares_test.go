package eventlog

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// All streams of one tenant together leave half of the log to others. What was accepted before is written again, and new records
// are taken once others are done. Streams that were there before a restart count.
func TestShareOfATenant(t *testing.T) {
	const mib = 1 << 20
	for name, memory := range map[string]bool{"on disk": false, "in memory": true} {
		t.Run(name, func(t *testing.T) {
			options := Options{Dir: t.TempDir(), MaxBytes: 8 * mib}
			l := open(t, options)
			limit := func() { l.memoryShares.limit, l.memory.limit = 4*mib, 8*mib }
			limit()
			of := func(tenant, id string) *Stream {
				t.Helper()
				s, err := l.Stream(t.Context(), StreamConfig{ID: id, Tenant: tenant, Memory: memory})
				if err != nil {
					t.Fatal(err)
				}
				return s
			}
			data := make([]byte, 128<<10)
			full := func(s *Stream) (n int) {
				t.Helper()
				for ; n < 64; n++ {
					if err := s.AppendNew(t.Context(), Record{Data: data}); errors.Is(err, ErrShareFull) && errors.Is(err, ErrFull) {
						return n
					} else if err != nil && !errors.Is(err, ErrFull) {
						t.Fatalf("append: %v, want ErrShareFull", err)
					} else if err != nil {
						return n
					}
				}
				t.Error("there is no limit")
				return n
			}
			total := 0
			var streams []*Stream
			for i := range 5 {
				streams = append(streams, of("greedy", fmt.Sprint("greedy-", i)))
				total += full(streams[i])
			}
			if total < 28 || total > 32 {
				t.Errorf("all streams of a tenant hold %d records of 128 KiB, want 4 MiB", total)
			}
			last := streams[4]
			if err := last.AppendNew(t.Context(), Record{Data: data}); !errors.Is(err, ErrShareFull) {
				t.Errorf("append a new record: %v, want ErrShareFull", err)
			}
			if err := last.Append(t.Context(), Record{Queue: "retry", Data: data}); err != nil {
				t.Errorf("append what was accepted before: %v", err)
			}
			if err := of("other", "other").AppendNew(t.Context(), Record{Data: data}); err != nil {
				t.Errorf("append to the stream of another tenant: %v", err)
			}
			if !memory {
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
				l = open(t, options)
				if err := of("greedy", "greedy-5").AppendNew(t.Context(), Record{Data: data}); !errors.Is(err, ErrShareFull) {
					t.Errorf("append after a restart: %v, want ErrShareFull", err)
				}
			}
			if err := l.DeleteStream(t.Context(), "greedy-0"); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the tenant's streams take records again", func() bool {
				return of("greedy", "greedy-5").AppendNew(t.Context(), Record{Data: data}) == nil
			})
		})
	}
}

// A backup keeps the tenants of streams, and is restored whatever they hold.
func TestBackupKeepsTenants(t *testing.T) {
	l := open(t, Options{Dir: t.TempDir(), MaxBytes: 8 << 20})
	s, err := l.Stream(t.Context(), StreamConfig{ID: "orders", Tenant: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	appendAll(t, s, "", "a", "b")
	var backup bytes.Buffer
	if err := l.Backup(t.Context(), &backup); err != nil {
		t.Fatal(err)
	}
	other := open(t, Options{Dir: t.TempDir(), MaxBytes: 8 << 20})
	other.diskShares.limit = 1
	if err := other.Restore(t.Context(), &backup); err != nil {
		t.Fatal(err)
	}
	if held, known := other.diskShares.held(); !known || held["shop"] == 0 {
		t.Errorf("tenants hold %v, known %t, want the restored records", held, known)
	}
}

// What is under way counts besides what the server holds, and the server is asked no more often than necessary.
func TestShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		there, known, asked := map[string]int64{"a": 90}, true, 0
		s := &shares{limit: 100, tenants: map[string]*share{}}
		s.held = func() (map[string]int64, bool) { asked++; return there, known }
		step := func(tenant string, bytes int64, full bool, wantAsked int) {
			t.Helper()
			if err := s.take(tenant, bytes); errors.Is(err, ErrShareFull) != full || !full && err != nil {
				t.Errorf("take %d for %s: %v, want ErrShareFull: %t", bytes, tenant, err, full)
			}
			if asked != wantAsked {
				t.Errorf("the server was asked %d times, want %d", asked, wantAsked)
			}
		}
		step("a", 5, false, 1)
		step("a", 6, true, 1)
		step("b", 100, false, 1)
		step("b", 1, true, 1)
		s.written("b", 100)
		time.Sleep(quotaFreshness) //nolint:forbidigo // the clock is synctest's
		step("b", 1, false, 2)
		step("a", 5, false, 2)
		// Nothing is known of a server that restarts.
		time.Sleep(sharesFreshness) //nolint:forbidigo // the clock is synctest's
		known = false
		step("a", 1, true, 3)
		// 10 of a and 1 of b are under way.
		time.Sleep(sharesFreshness) //nolint:forbidigo // the clock is synctest's
		known, there = true, map[string]int64{"a": 50}
		step("a", 41, true, 4)
		step("a", 40, false, 4)
		s.written("a", 50)
		s.written("b", 1)
		time.Sleep(sharesFreshness) //nolint:forbidigo // the clock is synctest's
		there = nil
		step("c", 1, false, 5)
		if len(s.tenants) != 1 {
			t.Errorf("%d tenants are known, want the one that holds something", len(s.tenants))
		}
	})
}
