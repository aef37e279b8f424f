package autoscaler

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// defaults returns the default operator settings.
func defaults() *settings.Settings {
	s := settings.Default("example.com")
	return &s
}

// configOf returns the configuration of a reachable, started Revision with autoscaling options.
func configOf(options routing.Autoscaling) config {
	return resolve(&routing.Revision{Autoscaling: options, Reachable: true, Started: true}, defaults())
}

func TestResolveDefaults(t *testing.T) {
	want := config{
		Target: 70, Capacity: 100, BurstCapacity: 211,
		StableWindow: time.Minute, PanicWindow: 6 * time.Second, PanicThreshold: 2,
		MaxScaleUpRate: 1000, MaxScaleDownRate: 2, Initial: 1, Activation: 1,
		ProgressDeadline: 10 * time.Minute, ScaleToZero: true, Reachable: true, Started: true,
	}
	if diff := cmp.Diff(want, configOf(routing.Autoscaling{})); diff != "" {
		t.Errorf("resolve without options (-want +got):\n%s", diff)
	}
}

// TestResolveProgressDeadline checks that config-deployment sets the default progress deadline.
func TestResolveProgressDeadline(t *testing.T) {
	s := defaults()
	s.Deployment.ProgressDeadline = 20 * time.Minute
	if got := resolve(&routing.Revision{}, s).ProgressDeadline; got != 20*time.Minute {
		t.Errorf("the progress deadline is %v, want the operator's", got)
	}
}

func TestResolveOptions(t *testing.T) {
	want := config{
		RPS: true, Target: 40, Capacity: 50, BurstCapacity: -1,
		StableWindow: 30 * time.Second, PanicWindow: 6 * time.Second, PanicThreshold: 1.5,
		MaxScaleUpRate: 1000, MaxScaleDownRate: 2, Min: 2, Max: 9, Initial: 3, Activation: 4,
		ScaleDownDelay: 15 * time.Second, Retention: time.Minute,
		ProgressDeadline: time.Minute, ScaleToZero: true, Reachable: true, Started: true,
	}
	got := configOf(routing.Autoscaling{
		RPS: true, Target: ptr.To(50.0), TargetUtilization: ptr.To(80.0), BurstCapacity: ptr.To(-1.0),
		StableWindow: ptr.To(30 * time.Second), PanicWindow: ptr.To(20.0), PanicThreshold: ptr.To(150.0),
		Min: ptr.To[int32](2), Max: ptr.To[int32](9), Initial: ptr.To[int32](3), Activation: ptr.To[int32](4),
		ScaleDownDelay: ptr.To(15 * time.Second), Retention: ptr.To(time.Minute), ProgressDeadline: ptr.To(time.Minute),
	})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Resolve (-want +got):\n%s", diff)
	}
}

func TestResolveTarget(t *testing.T) {
	for _, tc := range []struct {
		name             string
		concurrency      int
		options          routing.Autoscaling
		target, capacity float64
	}{
		{name: "without bound", target: 70, capacity: 100},
		{name: "container concurrency", concurrency: 10, target: 7, capacity: 10},
		{name: "own option", options: routing.Autoscaling{Target: ptr.To(20.0)}, target: 14, capacity: 20},
		{name: "own option below container concurrency", concurrency: 10, options: routing.Autoscaling{Target: ptr.To(5.0)}, target: 3.5, capacity: 5},
		{name: "own option above container concurrency", concurrency: 10, options: routing.Autoscaling{Target: ptr.To(500.0)}, target: 7, capacity: 10},
		{name: "rps", options: routing.Autoscaling{RPS: true}, target: 140, capacity: 200},
		{name: "rps, regardless of concurrency", concurrency: 10, options: routing.Autoscaling{RPS: true, Target: ptr.To(100.0)}, target: 70, capacity: 100},
		{name: "utilization", options: routing.Autoscaling{TargetUtilization: ptr.To(50.0)}, target: 50, capacity: 100},
		{name: "tiny", options: routing.Autoscaling{Target: ptr.To(0.01)}, target: 0.01, capacity: 0.01},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := resolve(&routing.Revision{ContainerConcurrency: tc.concurrency, Autoscaling: tc.options}, defaults())
			if diff := cmp.Diff([]float64{tc.target, tc.capacity}, []float64{c.Target, c.Capacity}, closeTo); diff != "" {
				t.Errorf("target, capacity (-want +got):\n%s", diff)
			}
		})
	}
}

var closeTo = cmp.Comparer(func(a, b float64) bool { return a-b < 1e-9 && b-a < 1e-9 })

func TestResolveScales(t *testing.T) {
	for _, tc := range []struct {
		name         string
		change       func(*settings.Settings)
		options      routing.Autoscaling
		max, initial int32
	}{
		{name: "default", max: 0, initial: 1},
		{name: "operator's maximum", change: func(s *settings.Settings) { s.Autoscaler.MaxScale = 5 }, max: 5, initial: 1},
		{name: "own option instead", change: func(s *settings.Settings) { s.Autoscaler.MaxScale = 5 }, options: routing.Autoscaling{Max: ptr.To[int32](8)}, max: 8, initial: 1},
		{name: "limit", change: func(s *settings.Settings) { s.Autoscaler.MaxScaleLimit = 6 }, options: routing.Autoscaling{Max: ptr.To[int32](8)}, max: 6, initial: 1},
		{name: "limit of no maximum", change: func(s *settings.Settings) { s.Autoscaler.MaxScaleLimit = 6 }, options: routing.Autoscaling{Max: ptr.To[int32](0)}, max: 6, initial: 1},
		{name: "below limit", change: func(s *settings.Settings) { s.Autoscaler.MaxScaleLimit = 6 }, options: routing.Autoscaling{Max: ptr.To[int32](4)}, max: 4, initial: 1},
		{name: "zero initial scale that is not allowed", change: func(s *settings.Settings) { s.Autoscaler.InitialScale = 2 }, options: routing.Autoscaling{Initial: ptr.To[int32](0)}, initial: 2},
		{name: "zero initial scale", change: func(s *settings.Settings) { s.API.AllowZeroInitialScale = true }, options: routing.Autoscaling{Initial: ptr.To[int32](0)}, initial: 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := defaults()
			if tc.change != nil {
				tc.change(s)
			}
			c := resolve(&routing.Revision{Autoscaling: tc.options}, s)
			if c.Max != tc.max || c.Initial != tc.initial {
				t.Errorf("max, initial = %d, %d, want %d, %d", c.Max, c.Initial, tc.max, tc.initial)
			}
		})
	}
}

func TestResolvePanicWindowIsAtLeastASecond(t *testing.T) {
	if got := configOf(routing.Autoscaling{StableWindow: ptr.To(6 * time.Second), PanicWindow: ptr.To(1.0)}).PanicWindow; got != time.Second {
		t.Errorf("panic window = %v, want 1s", got)
	}
}
