package eventlog

import (
	"sync/atomic"
	"testing"
)

// TestCached reports what the server keeps in memory of a tenant's streams on disk, until it is acknowledged or some time has passed.
func TestCached(t *testing.T) {
	var cached, most, others atomic.Int64
	l := open(t, Options{Dir: t.TempDir(), Cached: func(tenant string, bytes int64) {
		if tenant == "ns" {
			most.Store(max(most.Load(), cached.Add(bytes)))
		} else {
			others.Add(bytes)
		}
	}})
	fill := func(c StreamConfig) *Stream {
		t.Helper()
		s, err := l.Stream(patient(t), c)
		if err != nil {
			t.Fatal(err)
		}
		for range 4 {
			if err := appendTo(t.Context(), s, Record{Data: make([]byte, 1<<20)}); err != nil {
				t.Fatal(err)
			}
		}
		return s
	}
	fill(StreamConfig{ID: "memory", Tenant: "ns", Memory: true})
	if reported := most.Load(); reported != 0 {
		t.Errorf("%d bytes of a stream in memory are reported", reported)
	}
	s := fill(StreamConfig{ID: "disk", Tenant: "ns"})
	// A slow disk needs more than the time for which a file counts.
	if reported := most.Load(); reported < 1<<20 || reported > 5<<20 {
		t.Errorf("%d bytes of a stream on disk are reported, which has 4 MiB", reported)
	}
	c, err := s.Consume("", ConsumeOptions{}, func(f *Segment) { f.Ack() })
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	eventually(t, "nothing is reported", func() bool { return cached.Load() < 1<<20 })
	if others.Load() != 0 {
		t.Errorf("%d bytes are reported for other tenants", others.Load())
	}
}
