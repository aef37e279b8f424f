package trace

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// common returns the records of a usual event: its acceptance for one Trigger, and the attempt.
func common(id string, at time.Time) (acceptance, attempt Record) {
	acceptance = Record{
		Stream: eventing.Key{Kind: eventing.Broker, Namespace: "shop", Name: "orders"}, StreamUID: "b8d9a0c2-5a0e-4b0e-9d2e-0f2b1c3d4e5f", ID: id, Source: "/apis/shop/orders",
		Accepted: at,
	}
	attempt = acceptance
	consumer := eventing.Key{Kind: eventing.Trigger, Namespace: "shop", Name: "invoices"}
	acceptance.Acceptance = &Acceptance{
		Attributes: []event.Attribute{{Name: event.ID, Value: id}, {Name: event.Source, Value: "/apis/shop/orders"}, {Name: event.EventType, Value: "com.example.order.created"}},
		Address:    "10.244.1.17", Matched: []eventing.Key{consumer}, MatchedCount: 1, Filters: 1 << 62,
	}
	attempt.Attempt = &Attempt{Consumer: consumer, Number: 1, Start: at, Duration: 2 * time.Millisecond, Address: "http://invoices.shop.svc.cluster.local/", Code: 202}
	return acceptance, attempt
}

// uuid returns the nth ID in the form of most producers' IDs.
func uuid(n int64) string {
	x := uint64(n) * 0x9e3779b97f4a7c15
	return fmt.Sprintf("%08x-%04x-4%03x-a%03x-%012x", uint32(x), uint16(x>>32), uint16(x>>48)&0xfff, n&0xfff, n)
}

// BenchmarkAdd adds the two records of a usual event, in parallel. It adds more than can be written, so most are dropped at last.
func BenchmarkAdd(b *testing.B) {
	s := open(b, Options{Dir: b.TempDir()})
	written(b, s)
	var n atomic.Int64
	ids := make([]string, 1<<16)
	for i := range ids {
		ids[i] = uuid(int64(i))
	}
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			acceptance, attempt := common(ids[n.Add(1)%int64(len(ids))], time.Now())
			s.Add(&acceptance)
			s.Add(&attempt)
		}
	})
	b.StopTimer()
	written(b, s)
	b.ReportMetric(float64(s.tenant("shop").dropped.Load())/float64(2*b.N), "dropped/record")
}

// BenchmarkFind looks up events by ID among 10 million.
func BenchmarkFind(b *testing.B) {
	const events = 10_000_000
	s := open(b, Options{Dir: b.TempDir(), MaxBytes: 16 << 30})
	written(b, s)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range int64(events) {
		acceptance, attempt := common(uuid(i), time.Unix(0, i+1))
		s.Add(&acceptance)
		s.Add(&attempt)
		if i%5000 == 0 {
			written(b, s)
		}
	}
	written(b, s)
	runtime.GC()
	runtime.ReadMemStats(&after)
	slowest := time.Duration(0)
	for n := int64(0); b.Loop(); n++ {
		start := time.Now()
		found, more, err := s.Find(b.Context(), Query{Namespace: "shop", ID: uuid(n * 7919 % events)})
		if err != nil || more || len(found) != 2 {
			b.Fatalf("found %d records, more %t, %v", len(found), more, err)
		}
		slowest = max(slowest, time.Since(start))
	}
	b.ReportMetric(float64(int64(after.HeapAlloc)-int64(before.HeapAlloc))/events, "heapbytes/event")
	b.ReportMetric(float64(s.tenant("shop").bytes)/events, "diskbytes/event")
	b.ReportMetric(float64(len(s.tenant("shop").segments)), "segments")
	b.ReportMetric(float64(slowest.Microseconds())/1000, "ms-slowest")
}
