package eventlog

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
)

// All streams of one tenant together use at most half of the log. Records that were accepted before are still
// written, and new ones once others are acknowledged. Streams from before a restart count.
func TestShareOfATenant(t *testing.T) {
	const mib = 1 << 20
	for name, memory := range map[string]bool{"on disk": false, "in memory": true} {
		t.Run(name, func(t *testing.T) {
			options := Options{Dir: t.TempDir(), MaxBytes: 8 * mib}
			l := open(t, options)
			limit := func() { l.memoryShares.Limit, l.memory.Limit = 4*mib, 8*mib }
			limit()
			of := func(tenant, id string) *Stream {
				t.Helper()
				s, err := l.Stream(patient(t), StreamConfig{ID: id, Tenant: tenant, Memory: memory})
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
				t.Error("no limit applies")
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
				t.Errorf("append records that were accepted before: %v", err)
			}
			if err := of("other", "other").AppendNew(t.Context(), Record{Data: data}); err != nil {
				t.Errorf("append to the stream of another tenant: %v", err)
			}
			if !memory {
				closed(t, l)
				l = open(t, options)
				if err := of("greedy", "greedy-5").AppendNew(t.Context(), Record{Data: data}); !errors.Is(err, ErrShareFull) {
					t.Errorf("append after a restart: %v, want ErrShareFull", err)
				}
			}
			if err := l.DeleteStream(patient(t), "greedy-0"); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the tenant's streams accept records again", func() bool {
				return of("greedy", "greedy-5").AppendNew(t.Context(), Record{Data: data}) == nil
			})
		})
	}
}

// A backup keeps the tenants of streams, and is restored regardless of their shares.
func TestBackupKeepsTenants(t *testing.T) {
	l := open(t, Options{Dir: t.TempDir(), MaxBytes: 8 << 20})
	s, err := l.Stream(patient(t), StreamConfig{ID: "orders", Tenant: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	appendAll(t, s, "", "a", "b")
	var content bytes.Buffer
	if err := l.Backup(patient(t), &content); err != nil {
		t.Fatal(err)
	}
	other := open(t, Options{Dir: t.TempDir(), MaxBytes: 8 << 20})
	other.diskShares.Limit = 1
	if err := other.Restore(patient(t), &content); err != nil {
		t.Fatal(err)
	}
	if held, known := other.diskShares.Held(); !known || held["shop"] == 0 {
		t.Errorf("tenants hold %v, known %t, want the restored records", held, known)
	}
}
