package autoscaler

import (
	"context"
	"fmt"
	"testing"
	"time"

	"k8s.io/klog/v2"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// benchmarkLoop returns a Loop with active revisions under steady load and resting ones at zero.
func benchmarkLoop(b *testing.B, active, resting int) (*Loop, *clocktesting.FakeClock) {
	fake := clocktesting.NewFakeClock(epoch)
	s := defaults()
	l := New(Options{
		Settings: func() *settings.Settings { return s },
		Scale:    func(context.Context, routing.Key, int32) error { return nil },
		Sample: func(routing.Key, time.Time) (Sample, bool) {
			return Sample{Concurrency: 42, RequestsPerSecond: 420}, true
		},
		Clock:  fake,
		Logger: klog.NewKlogr(),
	})
	for i := range active + resting {
		r := revisionNamed(fmt.Sprintf("r-%d", i))
		l.SetRevision(&r)
		if i < active {
			l.Observe(r.Key, workload.State{UID: r.UID, Desired: 1, Ready: 1})
		}
	}
	l.receive(b.Context())
	if len(l.scaler.ticking) != active {
		b.Fatalf("%d active revisions, want %d", len(l.scaler.ticking), active)
	}
	for range 2 * int(s.Autoscaler.StableWindow/time.Second) {
		fake.Step(time.Second)
		l.scaler.sampleAll(b.Context())
	}
	return l, fake
}

// BenchmarkTick measures the work of two seconds: two samples and one decision for each active revision.
func BenchmarkTick(b *testing.B) {
	for _, tc := range []struct{ active, resting int }{{1000, 0}, {1000, 10000}, {0, 10000}} {
		b.Run(fmt.Sprintf("active=%d/resting=%d", tc.active, tc.resting), func(b *testing.B) {
			l, fake := benchmarkLoop(b, tc.active, tc.resting)
			b.ReportAllocs()
			for b.Loop() {
				for range 2 {
					fake.SetTime(fake.Now().Add(time.Second))
					l.receive(b.Context())
					l.scaler.sampleAll(b.Context())
				}
			}
		})
	}
}

// BenchmarkActivate measures Activate while backends start.
func BenchmarkActivate(b *testing.B) {
	l, _ := benchmarkLoop(b, 1, 1000)
	key := revisionNamed("r-0").Key
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			l.Activate(key)
		}
	})
}

// BenchmarkSettingsChanged resolves the configuration of 10,000 revisions.
func BenchmarkSettingsChanged(b *testing.B) {
	l, _ := benchmarkLoop(b, 0, 10000)
	b.ReportAllocs()
	for b.Loop() {
		l.SettingsChanged()
		l.receive(b.Context())
	}
}
