package autoscaler

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// fixture runs a Loop with a fake gateway and a fake workload. By default, backends are ready at once.
type fixture struct {
	*Loop
	mu       sync.Mutex
	settings *settings.Settings
	// scales are the requested numbers of backends, samples the numbers of samples of each revision.
	scales  map[routing.Key][]int32
	samples map[routing.Key]int
	load    map[routing.Key]Sample
	uids    map[routing.Key]types.UID
	// A silent workload publishes no state, a failing one returns an error, a stuck one has no ready backend.
	silent, stuck bool
	failing       error
	// scaled is called with each requested number of backends.
	scaled func(routing.Key, int32)
}

func newFixture() *fixture {
	w := &fixture{
		settings: defaults(),
		scales:   map[routing.Key][]int32{},
		samples:  map[routing.Key]int{},
		load:     map[routing.Key]Sample{},
		uids:     map[routing.Key]types.UID{},
	}
	w.Loop = New(Options{
		Settings: func() *settings.Settings { return w.settings },
		Scale:    w.scale,
		Sample:   w.sample,
		Clock:    clock.RealClock{},
	})
	return w
}

// start runs the Loop until the test ends. It must be called in a synctest bubble.
func (w *fixture) start(t *testing.T) {
	w.options.Logger, _ = ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

func (w *fixture) scale(_ context.Context, key routing.Key, instances int32) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.scales[key] = append(w.scales[key], instances)
	if w.scaled != nil {
		w.scaled(key, instances)
	}
	if w.failing != nil {
		return w.failing
	}
	state := workload.State{UID: w.uids[key], Desired: instances, Ready: instances}
	if w.stuck {
		state.Ready = 0
	}
	if !w.silent {
		w.Observe(key, state)
	}
	return nil
}

func (w *fixture) sample(key routing.Key, _ time.Time) (Sample, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.samples[key]++
	sample, ok := w.load[key]
	return sample, ok
}

func (w *fixture) setLoad(key routing.Key, sample Sample) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.load[key] = sample
}

func (w *fixture) sampled(key routing.Key) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.samples[key]
}

func (w *fixture) setRevision(r routing.Revision) {
	w.mu.Lock()
	w.uids[r.Key] = r.UID
	w.mu.Unlock()
	w.SetRevision(&r)
}

// after waits, and returns the scales requested so far.
func (w *fixture) after(d time.Duration, key routing.Key) []int32 {
	<-time.After(d)
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.scales[key])
}

func (w *fixture) check(t *testing.T, after time.Duration, key routing.Key, want ...int32) {
	t.Helper()
	if got := w.after(after, key); !slices.Equal(got, want) {
		t.Errorf("%v: scales = %v, want %v", key.Name, got, want)
	}
}

func revisionNamed(name string) routing.Revision {
	return routing.Revision{
		Key: routing.Key{Namespace: "default", Name: name}, UID: types.UID(name + "-uid"),
		Service: "hello", Configuration: "hello", Reachable: true, Started: true,
	}
}

func TestLoopActivates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, r := newFixture(), revisionNamed("a")
		w.stuck = true
		w.start(t)
		w.setRevision(r)
		w.check(t, time.Hour, r.Key)
		w.setLoad(r.Key, Sample{Concurrency: 1, Waiting: 1})
		var callers sync.WaitGroup
		for range 500 {
			callers.Go(func() { w.Activate(r.Key) })
		}
		callers.Wait()
		w.check(t, 0, r.Key, 1)
		before := w.sampled(r.Key)
		for range 100 {
			w.Activate(r.Key)
			synctest.Wait()
		}
		if n := w.sampled(r.Key) - before; n != 0 {
			t.Errorf("sampled %d times for requests that wait for instances which start", n)
		}
		w.check(t, time.Minute, r.Key, 1)
	})
}

func TestLoopScalesUpAndToZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, r := newFixture(), revisionNamed("a")
		w.start(t)
		w.setRevision(r)
		w.Activate(r.Key)
		w.setLoad(r.Key, Sample{Concurrency: 100, RequestsPerSecond: 100})
		w.check(t, time.Second, r.Key, 1)
		w.check(t, time.Second, r.Key, 1, 2)
		w.setLoad(r.Key, Sample{})
		w.check(t, 10*time.Minute, r.Key, 1, 2, 1, 0)
		before := w.sampled(r.Key)
		w.check(t, time.Hour, r.Key, 1, 2, 1, 0)
		if n := w.sampled(r.Key) - before; n != 0 {
			t.Errorf("sampled %d times at rest", n)
		}
		if w.registry.revisions[r.Key].window != nil {
			t.Error("keeps a window at rest")
		}
	})
}

// TestLoopActivatesOnce checks that a request leads to one decision, and hundreds of requests that wait for a slow first backend to one per sample.
func TestLoopActivatesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, other, r := newFixture(), revisionNamed("other"), revisionNamed("a")
		other.Autoscaling = routing.Autoscaling{Min: ptr.To[int32](1)}
		w.stuck = true
		w.start(t)
		w.setRevision(other)
		w.setRevision(r)
		w.check(t, 5*time.Minute+tickInterval*3/4, r.Key)
		w.setLoad(r.Key, Sample{Concurrency: 1, Waiting: 1})
		w.Activate(r.Key)
		w.check(t, time.Millisecond, r.Key, 1)
		w.setLoad(r.Key, Sample{Concurrency: 500, Waiting: 500})
		w.Activate(r.Key)
		w.check(t, time.Millisecond, r.Key, 1)
		w.check(t, sampleInterval, r.Key, 1, 5)
	})
}

// TestLoopReactsWithinATick sends a burst to running backends.
func TestLoopReactsWithinATick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, r := newFixture(), revisionNamed("a")
		r.Autoscaling = routing.Autoscaling{Min: ptr.To[int32](1), Target: ptr.To(10.0)}
		w.start(t)
		w.setRevision(r)
		w.check(t, 5*time.Minute, r.Key, 1)
		w.setLoad(r.Key, Sample{Concurrency: 120, Waiting: 110})
		scales := w.after(tickInterval, r.Key)
		if last := scales[len(scales)-1]; last < 3 {
			t.Errorf("a tick after the burst: scales = %v, want at least 3 instances", scales)
		}
		scales = w.after(3*tickInterval, r.Key)
		if last := scales[len(scales)-1]; last < 15 {
			t.Errorf("a panic window after the burst: scales = %v, want what 120 / 7 needs", scales)
		}
	})
}

// TestLoopLosesNoRequestAtZero sends a request while the revision scales to zero: the last sample sees a request that waited
// before, and a later request activates.
func TestLoopLosesNoRequestAtZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, r := newFixture(), revisionNamed("a")
		w.start(t)
		w.setRevision(r)
		w.Activate(r.Key)
		w.scaled = func(key routing.Key, instances int32) {
			if instances == 0 {
				w.Activate(key)
			}
		}
		w.check(t, 62*time.Second, r.Key, 1, 0, 1)
	})
}

func TestLoopSamplesBeforeZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, r := newFixture(), revisionNamed("a")
		var calls []time.Time
		sample := w.options.Sample
		w.options.Sample = func(key routing.Key, now time.Time) (Sample, bool) {
			calls = append(calls, now)
			// Only the second sample of a moment sees the request.
			if n := len(calls); n > 2 && calls[n-2].Equal(now) {
				return Sample{Waiting: 1}, true
			}
			return sample(key, now)
		}
		w.start(t)
		w.setRevision(r)
		synctest.Wait()
		<-time.After(time.Millisecond)
		w.Activate(r.Key)
		w.check(t, 10*time.Minute, r.Key, 1)
	})
}

func TestLoopStartsNewRevisions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, r := newFixture(), revisionNamed("a")
		r.Started, r.Reachable = false, false
		r.Autoscaling = routing.Autoscaling{Initial: ptr.To[int32](2)}
		w.start(t)
		w.setRevision(r)
		w.check(t, 0, r.Key, 2)
		w.check(t, time.Minute, r.Key, 2)
		r.Started = true
		w.setRevision(r)
		r.Reachable = true
		w.setRevision(r)
		w.check(t, 10*time.Minute, r.Key, 2, 1, 0)
	})
}

func TestLoopAfterRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture()
		atZero, kept, unrouted, running, waited := revisionNamed("atZero"), revisionNamed("kept"), revisionNamed("unrouted"), revisionNamed("running"), revisionNamed("waited")
		kept.Autoscaling = routing.Autoscaling{Min: ptr.To[int32](2)}
		unrouted.Autoscaling = kept.Autoscaling
		unrouted.Reachable = false
		w.setLoad(waited.Key, Sample{Waiting: 3})
		w.start(t)
		// The gateway may route to a revision earlier.
		w.Activate(waited.Key)
		w.Observe(running.Key, workload.State{UID: running.UID, Desired: 3, Ready: 3})
		for _, r := range []routing.Revision{atZero, kept, unrouted, running, waited} {
			w.setRevision(r)
		}
		w.check(t, 0, atZero.Key)
		w.check(t, 0, kept.Key, 2)
		w.check(t, 0, unrouted.Key)
		w.check(t, time.Minute, running.Key)
		w.check(t, 0, waited.Key, 1)
		w.check(t, time.Hour, running.Key, 1, 0)
		w.check(t, 0, atZero.Key)
	})
}

func TestLoopRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, r := newFixture(), revisionNamed("a")
		w.failing = errors.New("not now")
		w.start(t)
		w.setRevision(r)
		w.Activate(r.Key)
		w.check(t, 2500*time.Millisecond, r.Key, 1, 1, 1)
		w.mu.Lock()
		w.failing = nil
		w.mu.Unlock()
		w.check(t, 50*time.Second, r.Key, 1, 1, 1, 1)
	})
}

// TestLoopRepeatsScale checks that the scale is requested again from a workload that did not have the revision, or lost its scale.
func TestLoopRepeatsScale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, r := newFixture(), revisionNamed("a")
		r.Autoscaling = routing.Autoscaling{Min: ptr.To[int32](1)}
		w.silent = true
		w.start(t)
		w.setRevision(r)
		w.check(t, 3*time.Second, r.Key, 1, 1)
		// A revision that appears: at once.
		w.Observe(r.Key, workload.State{UID: r.UID})
		w.check(t, 0, r.Key, 1, 1, 1)
		// A revision that existed: at the next tick, which bounds the requests to a workload that ignores them.
		w.mu.Lock()
		w.silent = false
		w.mu.Unlock()
		w.Observe(r.Key, workload.State{UID: r.UID})
		w.check(t, 0, r.Key, 1, 1, 1)
		w.check(t, time.Minute, r.Key, 1, 1, 1, 1)
		// The state of another revision with the same name is ignored.
		w.Observe(r.Key, workload.State{UID: "other"})
		w.check(t, time.Minute, r.Key, 1, 1, 1, 1)
	})
}

func TestLoopAppliesSettings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, r := newFixture(), revisionNamed("a")
		w.start(t)
		w.setRevision(r)
		w.check(t, time.Minute, r.Key)
		changed := defaults()
		changed.Autoscaler.MinScale = 3
		w.settings = changed
		w.SettingsChanged()
		w.check(t, 0, r.Key, 3)
	})
}

// TestLoopResizesWindows makes the window shorter, then longer, which keeps the samples.
func TestLoopResizesWindows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, r := newFixture(), revisionNamed("a")
		window := func(length time.Duration) {
			changed := defaults()
			changed.Autoscaler.StableWindow = length
			w.settings = changed
			w.SettingsChanged()
		}
		w.start(t)
		w.setRevision(r)
		w.Activate(r.Key)
		w.check(t, 5*time.Second, r.Key, 1)
		window(10 * time.Second)
		w.check(t, 3*time.Second, r.Key, 1)
		w.check(t, 5*time.Second, r.Key, 1, 0)
		w.Activate(r.Key)
		w.setLoad(r.Key, Sample{Concurrency: 1})
		w.check(t, 40*time.Second, r.Key, 1, 0, 1)
		w.setLoad(r.Key, Sample{})
		window(time.Minute)
		w.check(t, 57*time.Second, r.Key, 1, 0, 1)
		w.check(t, 5*time.Second, r.Key, 1, 0, 1, 0)
	})
}

// TestLoopAfterPause checks that a first sample over an hour weighs no more than others.
func TestLoopAfterPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, r := newFixture(), revisionNamed("a")
		sample := w.options.Sample
		first := true
		w.options.Sample = func(key routing.Key, now time.Time) (Sample, bool) {
			_, _ = sample(key, now)
			if w.sampled(key) == 2 && first {
				first = false
				return Sample{Concurrency: 70 * 15}, true
			}
			return Sample{Concurrency: 1}, true
		}
		w.start(t)
		w.setRevision(r)
		w.check(t, time.Hour, r.Key)
		r.Autoscaling = routing.Autoscaling{Min: ptr.To[int32](1)}
		w.setRevision(r)
		// Two seconds of load for 15 backends, and one second of almost none.
		w.check(t, tickInterval, r.Key, 1, 11)
	})
}

func TestLoopDeletes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, r := newFixture(), revisionNamed("a")
		r.Autoscaling = routing.Autoscaling{Min: ptr.To[int32](1)}
		w.silent = true
		w.start(t)
		w.setRevision(r)
		w.check(t, 0, r.Key, 1)
		w.DeleteRevision(r.Key)
		w.Activate(r.Key)
		before := w.sampled(r.Key)
		w.check(t, time.Hour, r.Key, 1)
		if n := w.sampled(r.Key) - before; n != 0 {
			t.Errorf("sampled %d times after it was deleted", n)
		}
		// The workload drains the backends.
		w.Observe(r.Key, workload.State{UID: r.UID, Ready: 1})
		w.Observe(r.Key, workload.State{})
		if n := len(w.registry.revisions); n != 0 {
			t.Errorf("%d revisions known, want none", n)
		}
	})
}

func TestLoopReplaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, r := newFixture(), revisionNamed("a")
		r.Autoscaling = routing.Autoscaling{Min: ptr.To[int32](3)}
		w.start(t)
		w.setRevision(r)
		w.check(t, time.Minute, r.Key, 3)
		next := revisionNamed("a")
		next.UID, next.Started = "next", false
		// The workload may have the revision earlier, with backends.
		w.Observe(next.Key, workload.State{UID: next.UID, Desired: 2, Ready: 2})
		w.check(t, 3*time.Second, r.Key, 3)
		w.setRevision(next)
		w.check(t, time.Minute, r.Key, 3)
		w.check(t, time.Minute, r.Key, 3, 1)
	})
}

func TestLoopKeepsFailingRevision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, r := newFixture(), revisionNamed("a")
		w.stuck = true
		w.setLoad(r.Key, Sample{Concurrency: 900, Waiting: 900})
		w.start(t)
		w.setRevision(r)
		w.check(t, 0, r.Key, 9)
		w.Observe(r.Key, workload.State{UID: r.UID, Desired: 9, Failure: &workload.Failure{Reason: "ExitCode1"}})
		w.check(t, 5*time.Minute, r.Key, 9)
	})
}
