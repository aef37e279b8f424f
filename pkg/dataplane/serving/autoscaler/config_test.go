package autoscaler

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// defaults returns the default operator settings.
func defaults() *settings.Settings {
	s := settings.Default("example.com")
	return &s
}

// resolve returns the configuration of a reachable, started revision with annotations, whose keys lack the prefix.
func resolve(annotations map[string]string) Config {
	return Resolve(&routing.Revision{Annotations: annotated(annotations), Reachable: true, Started: true}, defaults())
}

func annotated(annotations map[string]string) map[string]string {
	keys := map[string]string{}
	for key, value := range annotations {
		keys["autoscaling.knative.dev/"+key] = value
	}
	return keys
}

func TestResolveDefaults(t *testing.T) {
	want := Config{
		Target: 70, Capacity: 100, BurstCapacity: 211,
		StableWindow: time.Minute, PanicWindow: 6 * time.Second, PanicThreshold: 2,
		MaxScaleUpRate: 1000, MaxScaleDownRate: 2, Initial: 1, Activation: 1,
		ProgressDeadline: 10 * time.Minute, ScaleToZero: true, Reachable: true, Started: true,
	}
	if diff := cmp.Diff(want, resolve(nil)); diff != "" {
		t.Errorf("Resolve without annotations (-want +got):\n%s", diff)
	}
}

// TestResolveProgressDeadline checks that config-deployment sets the default progress deadline.
func TestResolveProgressDeadline(t *testing.T) {
	s := defaults()
	s.Deployment.ProgressDeadline = 20 * time.Minute
	if got := Resolve(&routing.Revision{}, s).ProgressDeadline; got != 20*time.Minute {
		t.Errorf("the progress deadline is %v, want the operator's", got)
	}
}

func TestResolveAnnotations(t *testing.T) {
	want := Config{
		RPS: true, Target: 40, Capacity: 50, BurstCapacity: -1,
		StableWindow: 30 * time.Second, PanicWindow: 6 * time.Second, PanicThreshold: 1.5,
		MaxScaleUpRate: 1000, MaxScaleDownRate: 2, Min: 2, Max: 9, Initial: 3, Activation: 4,
		ScaleDownDelay: 15 * time.Second, Retention: time.Minute,
		ProgressDeadline: time.Minute, ScaleToZero: true, Reachable: true, Started: true,
	}
	same := map[string]string{"metric": "rps", "target": "50", "window": "30s", "activation-scale": "4"}
	present := map[string]string{
		"target-utilization-percentage": "80", "target-burst-capacity": "-1", "panic-window-percentage": "20",
		"panic-threshold-percentage": "150", "min-scale": "2", "max-scale": "9", "initial-scale": "3",
		"scale-down-delay": "15s", "scale-to-zero-pod-retention-period": "1m",
	}
	legacy := map[string]string{
		"targetUtilizationPercentage": "80", "targetBurstCapacity": "-1", "panicWindowPercentage": "20",
		"panicThresholdPercentage": "150", "minScale": "2", "maxScale": "9", "initialScale": "3",
		"scaleDownDelay": "15s", "scaleToZeroPodRetentionPeriod": "1m",
	}
	for name, spelling := range map[string]map[string]string{"present": present, "legacy": legacy} {
		t.Run(name, func(t *testing.T) {
			annotations := annotated(spelling)
			for key, value := range annotated(same) {
				annotations[key] = value
			}
			annotations["serving.knative.dev/progress-deadline"] = "1m"
			got := Resolve(&routing.Revision{Annotations: annotations, Reachable: true, Started: true}, defaults())
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("Resolve (-want +got):\n%s", diff)
			}
		})
	}
}

func TestResolveTarget(t *testing.T) {
	for _, tc := range []struct {
		name             string
		concurrency      int
		annotations      map[string]string
		target, capacity float64
	}{
		{name: "without bound", target: 70, capacity: 100},
		{name: "container concurrency", concurrency: 10, target: 7, capacity: 10},
		{name: "annotation", annotations: map[string]string{"target": "20"}, target: 14, capacity: 20},
		{name: "annotation below container concurrency", concurrency: 10, annotations: map[string]string{"target": "5"}, target: 3.5, capacity: 5},
		{name: "annotation above container concurrency", concurrency: 10, annotations: map[string]string{"target": "500"}, target: 7, capacity: 10},
		{name: "rps", annotations: map[string]string{"metric": "rps"}, target: 140, capacity: 200},
		{name: "rps, whatever the concurrency", concurrency: 10, annotations: map[string]string{"metric": "rps", "target": "100"}, target: 70, capacity: 100},
		{name: "utilization", annotations: map[string]string{"target-utilization-percentage": "50"}, target: 50, capacity: 100},
		{name: "tiny", annotations: map[string]string{"target": "0.01"}, target: 0.01, capacity: 0.01},
		{name: "not a number", annotations: map[string]string{"target": "NaN", "target-utilization-percentage": "x"}, target: 70, capacity: 100},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := Resolve(&routing.Revision{ContainerConcurrency: tc.concurrency, Annotations: annotated(tc.annotations)}, defaults())
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
		annotations  map[string]string
		max, initial int32
	}{
		{name: "default", max: 0, initial: 1},
		{name: "operator's maximum", change: func(s *settings.Settings) { s.Autoscaler.MaxScale = 5 }, max: 5, initial: 1},
		{name: "annotation instead", change: func(s *settings.Settings) { s.Autoscaler.MaxScale = 5 }, annotations: map[string]string{"max-scale": "8"}, max: 8, initial: 1},
		{name: "limit", change: func(s *settings.Settings) { s.Autoscaler.MaxScaleLimit = 6 }, annotations: map[string]string{"max-scale": "8"}, max: 6, initial: 1},
		{name: "limit of no maximum", change: func(s *settings.Settings) { s.Autoscaler.MaxScaleLimit = 6 }, annotations: map[string]string{"max-scale": "0"}, max: 6, initial: 1},
		{name: "below limit", change: func(s *settings.Settings) { s.Autoscaler.MaxScaleLimit = 6 }, annotations: map[string]string{"max-scale": "4"}, max: 4, initial: 1},
		{name: "zero initial scale that is not allowed", change: func(s *settings.Settings) { s.Autoscaler.InitialScale = 2 }, annotations: map[string]string{"initial-scale": "0"}, initial: 2},
		{name: "zero initial scale", change: func(s *settings.Settings) { s.API.AllowZeroInitialScale = true }, annotations: map[string]string{"initial-scale": "0"}, initial: 0},
		{name: "out of range", annotations: map[string]string{"max-scale": "-1", "initial-scale": "9999999999"}, max: 0, initial: 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := defaults()
			if tc.change != nil {
				tc.change(s)
			}
			c := Resolve(&routing.Revision{Annotations: annotated(tc.annotations)}, s)
			if c.Max != tc.max || c.Initial != tc.initial {
				t.Errorf("max, initial = %d, %d, want %d, %d", c.Max, c.Initial, tc.max, tc.initial)
			}
		})
	}
}

func TestResolvePanicWindowIsAtLeastASecond(t *testing.T) {
	if got := resolve(map[string]string{"window": "6s", "panic-window-percentage": "1"}).PanicWindow; got != time.Second {
		t.Errorf("panic window = %v, want 1s", got)
	}
}
