package autoscaler

import (
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// moment is one call of decide at a time after the first, with its input and the expected decision.
type moment struct {
	after          time.Duration
	stable, panic  float64
	waiting        int
	ready, desired int32
	unsampled      bool
	failing        bool
	// change changes the configuration before the call.
	change func(*config)

	want      int32
	panicking bool
}

// TestDecide covers each reason of a decision, including revisions without Routes (serving 7.3-1). The simulations cover the
// behaviour over time.
func TestDecide(t *testing.T) {
	started := func(c *config) { c.Started = true }
	routed := func(c *config) { c.Reachable = true }
	unrouted := func(c *config) { c.Reachable = false }
	const s = time.Second
	for _, tc := range []struct {
		name    string
		options routing.Autoscaling
		config  func(*config)
		moments []moment
	}{
		{name: "as many as the average needs", moments: []moment{{stable: 71, panic: 71, ready: 2, desired: 2, want: 2}}},
		{name: "one target is one instance", moments: []moment{{stable: 70.00000001, panic: 70, ready: 1, desired: 1, want: 1}}},
		{name: "rounded up", moments: []moment{{stable: 140.1, panic: 140.1, ready: 2, desired: 2, want: 3}}},
		{
			name:   "up by no more than the rate",
			config: func(c *config) { c.MaxScaleUpRate = 1.5 },
			moments: []moment{
				{stable: 7000, panic: 100, ready: 3, desired: 3, want: 5},
			},
		},
		{
			name:    "up from none as from one",
			config:  func(c *config) { c.MaxScaleUpRate = 10; c.PanicThreshold = 1e9 },
			moments: []moment{{stable: 7000, panic: 7000, ready: 0, desired: 1, want: 10}},
		},
		{name: "down by no more than the rate", moments: []moment{{stable: 70, panic: 70, ready: 9, desired: 9, want: 4}}},
		{name: "down at once if unreachable", config: unrouted, moments: []moment{{stable: 70, panic: 70, ready: 9, desired: 9, want: 1}}},
		{
			name: "panic lasts a stable window and never scales down",
			moments: []moment{
				{stable: 70, panic: 139, ready: 1, desired: 1, want: 2, panicking: true},
				{after: 2 * s, stable: 80, panic: 420, ready: 1, desired: 2, want: 6, panicking: true},
				{after: 4 * s, stable: 100, panic: 100, ready: 6, desired: 6, want: 6, panicking: true},
				{after: 62 * s, stable: 70, panic: 211, ready: 6, desired: 6, want: 6, panicking: true},
				{after: 64 * s, stable: 70, panic: 211, ready: 6, desired: 6, want: 3},
			},
		},
		{
			name: "panic ends after four panic windows if half of the scale would do",
			moments: []moment{
				{stable: 70, panic: 420, ready: 1, desired: 1, want: 6, panicking: true},
				{after: 22 * s, stable: 70, panic: 70, ready: 6, desired: 6, want: 6, panicking: true},
				{after: 24 * s, stable: 70, panic: 211, ready: 6, desired: 6, want: 6, panicking: true},
				{after: 26 * s, stable: 70, panic: 210, ready: 6, desired: 6, want: 3},
				{after: 28 * s, stable: 70, panic: 210, ready: 3, desired: 3, want: 1},
			},
		},
		{
			name: "panic is prolonged while over the threshold",
			moments: []moment{
				{stable: 70, panic: 200, ready: 1, desired: 1, want: 3, panicking: true},
				{after: 20 * s, stable: 140, panic: 700, ready: 3, desired: 3, want: 10, panicking: true},
				{after: 42 * s, stable: 70, panic: 70, ready: 10, desired: 10, want: 10, panicking: true},
				{after: 80 * s, stable: 70, panic: 420, ready: 10, desired: 10, want: 10, panicking: true},
				{after: 81 * s, stable: 70, panic: 420, ready: 10, desired: 10, want: 5},
			},
		},
		{name: "below the threshold", moments: []moment{{stable: 70, panic: 350, ready: 3, desired: 3, want: 1}}},
		{
			name:   "the stable window counts in panic, too",
			config: func(c *config) { c.PanicThreshold = 1.1 },
			moments: []moment{
				{stable: 490, panic: 280, ready: 3, desired: 3, want: 7, panicking: true},
			},
		},
		{name: "at most max-scale", options: routing.Autoscaling{Max: ptr.To[int32](3)}, moments: []moment{{stable: 700, panic: 700, ready: 3, desired: 3, want: 3, panicking: true}}},
		{name: "at least min-scale", options: routing.Autoscaling{Min: ptr.To[int32](3)}, moments: []moment{{ready: 4, desired: 4, want: 3}, {desired: 0, unsampled: true, want: 3}}},
		{
			name: "min-scale does not apply to unreachable revisions", options: routing.Autoscaling{Min: ptr.To[int32](3)}, config: unrouted,
			moments: []moment{{ready: 3, desired: 3, want: 1}, {after: 60 * s, ready: 1, desired: 1, want: 0}},
		},
		{
			name: "raised and lowered bounds count at once", options: routing.Autoscaling{Min: ptr.To[int32](1)},
			moments: []moment{
				{unsampled: true, ready: 1, desired: 1, want: 1},
				{unsampled: true, ready: 1, desired: 1, want: 4, change: func(c *config) { c.Min = 4 }},
				{unsampled: true, ready: 4, desired: 4, want: 2, change: func(c *config) { c.Min, c.Max = 0, 2 }},
			},
		},
		{
			name: "initial scale until started", options: routing.Autoscaling{Initial: ptr.To[int32](3)},
			config: func(c *config) { c.Started, c.Reachable = false, false },
			moments: []moment{
				{unsampled: true, want: 3},
				{after: 50 * s, ready: 1, desired: 3, want: 3},
				{after: 70 * s, ready: 2, desired: 3, want: 3},
				{after: 72 * s, ready: 2, desired: 3, want: 3, change: started},
				{after: 74 * s, ready: 3, desired: 3, want: 1, change: routed},
				{after: 109 * s, ready: 1, desired: 1, want: 1},
				{after: 111 * s, ready: 1, desired: 1, want: 0},
			},
		},
		{
			name: "min-scale until the route follows", options: routing.Autoscaling{Min: ptr.To[int32](2)},
			config: func(c *config) { c.Started, c.Reachable = false, false },
			moments: []moment{
				{unsampled: true, want: 2},
				{after: 4 * s, ready: 2, desired: 2, want: 2, change: started},
				{after: 6 * s, ready: 2, desired: 2, want: 2, change: routed},
				{after: 8 * s, ready: 2, desired: 2, want: 1, change: unrouted},
			},
		},
		{
			name: "min-scale without a route", options: routing.Autoscaling{Min: ptr.To[int32](2)},
			config: func(c *config) { c.Started, c.Reachable = false, false },
			moments: []moment{
				{unsampled: true, want: 2},
				{after: 4 * s, ready: 2, desired: 2, want: 2, change: started},
				{after: 62 * s, ready: 2, desired: 2, want: 2},
				{after: 64 * s, ready: 2, desired: 2, want: 0},
			},
		},
		{
			name: "initial scale that never gets ready", config: func(c *config) { c.Started, c.Reachable = false, false },
			moments: []moment{
				{unsampled: true, want: 1},
				{after: 599 * s, desired: 1, failing: true, want: 1},
				{after: 600 * s, desired: 1, failing: true, want: 0},
				{after: 601 * s, waiting: 1, unsampled: true, failing: true, want: 1},
			},
		},
		{
			name: "initial scale of zero", config: func(c *config) { c.Started, c.Initial = false, 0 },
			moments: []moment{{unsampled: true, want: 0}, {after: s, unsampled: true, waiting: 1, want: 1}},
		},
		{name: "no more than max-scale initially", options: routing.Autoscaling{Initial: ptr.To[int32](5), Max: ptr.To[int32](2)}, config: func(c *config) { c.Started = false }, moments: []moment{{unsampled: true, want: 2}}},
		{name: "started revisions stay at zero", options: routing.Autoscaling{Initial: ptr.To[int32](3)}, moments: []moment{{unsampled: true, want: 0}}},
		{
			name: "from zero, a backend for each capacity of waiting requests",
			moments: []moment{
				{unsampled: true, waiting: 1, want: 1},
				{after: s, unsampled: true, waiting: 100, desired: 1, want: 1},
				{after: s, unsampled: true, waiting: 101, desired: 1, want: 2},
				{after: s, unsampled: true, waiting: 1, desired: 2, want: 2},
				{after: s, unsampled: true, waiting: 500, desired: 2, ready: 1, want: 2},
			},
		},
		{name: "from zero, several backends at once", moments: []moment{{unsampled: true, waiting: 500, want: 5}}},
		{
			name: "from zero, no more than the rate", config: func(c *config) { c.MaxScaleUpRate = 2.5 },
			moments: []moment{{unsampled: true, waiting: 500, want: 3}},
		},
		{
			name: "from zero, no more than max-scale", options: routing.Autoscaling{Max: ptr.To[int32](4)},
			moments: []moment{{unsampled: true, waiting: 500, want: 4}},
		},
		{
			name: "from zero, one backend by requests per second", options: routing.Autoscaling{RPS: true},
			moments: []moment{{unsampled: true, waiting: 5000, want: 1}},
		},
		{
			name: "activation scale until it is ready once", options: routing.Autoscaling{Activation: ptr.To[int32](4)},
			moments: []moment{
				{unsampled: true, waiting: 1, want: 4},
				{after: 2 * s, stable: 1, panic: 1, ready: 1, desired: 4, want: 4},
				{after: 4 * s, stable: 1, panic: 1, ready: 4, desired: 4, want: 2},
				{after: 6 * s, stable: 1, panic: 1, ready: 2, desired: 2, want: 1},
			},
		},
		{
			name: "activation scale that never gets ready", options: routing.Autoscaling{Activation: ptr.To[int32](4)},
			moments: []moment{
				{unsampled: true, waiting: 1, want: 4},
				{after: 2 * s, stable: 1, panic: 1, ready: 3, desired: 4, want: 4},
				{after: 61 * s, stable: 1, panic: 1, ready: 3, desired: 4, want: 4},
				{after: 62 * s, stable: 1, panic: 1, ready: 3, desired: 4, want: 1},
			},
		},
		{
			name:    "activation scale is not for min-scale",
			config:  func(c *config) { c.Min, c.Activation = 1, 4 },
			moments: []moment{{unsampled: true, want: 1}},
		},
		{
			name: "zero after a stable window", moments: []moment{
				{unsampled: true, waiting: 1, want: 1},
				{after: 2 * s, stable: 0.5, panic: 0.5, ready: 1, desired: 1, want: 1},
				{after: 30 * s, stable: 0.001, ready: 1, desired: 1, want: 1},
				{after: 60 * s, ready: 1, desired: 1, want: 1},
				{after: 62 * s, ready: 1, desired: 1, want: 0},
			},
		},
		{
			name: "zero after the retention period", options: routing.Autoscaling{Retention: ptr.To(30 * time.Second)},
			moments: []moment{
				{after: 0, stable: 1, panic: 1, ready: 1, desired: 1, want: 1},
				{after: 60 * s, ready: 1, desired: 1, want: 1},
				{after: 88 * s, ready: 1, desired: 1, want: 1},
				{after: 88 * s, unsampled: true, ready: 1, desired: 1, want: 1},
				{after: 90 * s, ready: 1, desired: 1, want: 0},
			},
		},
		{
			name: "a request ends the retention period", options: routing.Autoscaling{Retention: ptr.To(30 * time.Second)},
			moments: []moment{
				{after: 0, stable: 1, panic: 1, ready: 1, desired: 1, want: 1},
				{after: 60 * s, ready: 1, desired: 1, want: 1},
				{after: 80 * s, stable: 0.01, panic: 0.1, ready: 1, desired: 1, want: 1},
				{after: 140 * s, ready: 1, desired: 1, want: 1},
				{after: 168 * s, ready: 1, desired: 1, want: 1},
				{after: 170 * s, ready: 1, desired: 1, want: 0},
			},
		},
		{
			name: "retention does not apply to unreachable revisions", options: routing.Autoscaling{Retention: ptr.To(30 * time.Minute)}, config: unrouted,
			moments: []moment{{after: 0, stable: 1, panic: 1, ready: 1, desired: 1, want: 1}, {after: 60 * s, ready: 1, desired: 1, want: 0}},
		},
		{
			name: "never zero if not enabled", config: func(c *config) { c.ScaleToZero = false },
			moments: []moment{
				{unsampled: true, want: 1},
				{after: 200 * s, ready: 1, desired: 1, want: 1},
				{after: 262 * s, ready: 1, desired: 1, want: 0, change: unrouted},
			},
		},
		{name: "not to zero with a request waiting", moments: []moment{{ready: 1, desired: 1, want: 1}, {after: 100 * s, waiting: 1, desired: 1, want: 1}}},
		{
			name: "delayed scaling down", options: routing.Autoscaling{ScaleDownDelay: ptr.To(20 * time.Second)},
			moments: []moment{
				{stable: 350, panic: 350, ready: 5, desired: 5, want: 5},
				{after: 2 * s, stable: 210, panic: 210, ready: 5, desired: 5, want: 5},
				{after: 20 * s, stable: 140, panic: 140, ready: 5, desired: 5, want: 5},
				{after: 22 * s, stable: 140, panic: 140, ready: 5, desired: 5, want: 3},
				{after: 24 * s, stable: 490, panic: 490, ready: 5, desired: 3, want: 7},
			},
		},
		{name: "no sample changes nothing", moments: []moment{{unsampled: true, ready: 3, desired: 3, want: 3}}},
		{
			name: "waiting for a failing instance starts no more",
			moments: []moment{
				{after: 0, stable: 700, panic: 700, waiting: 700, desired: 1, failing: true, want: 1, panicking: true},
				{after: 2 * s, stable: 700, panic: 700, waiting: 700, desired: 1, ready: 1, want: 10, panicking: true},
			},
		},
		{
			name: "a failing instance beside ready ones",
			moments: []moment{
				{stable: 700, panic: 700, waiting: 700, desired: 2, ready: 1, failing: true, want: 10, panicking: true},
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := configOf(tc.options)
			if tc.config != nil {
				tc.config(&c)
			}
			var memory memory
			for i, m := range tc.moments {
				if m.change != nil {
					m.change(&c)
				}
				got := decide(&c, &input{
					Now: epoch.Add(m.after), Stable: m.stable, Panic: m.panic, Sampled: !m.unsampled,
					Waiting: m.waiting, Ready: m.ready, Desired: m.desired, Failing: m.failing,
				}, &memory)
				if got.Desired != m.want || got.Panicking != m.panicking {
					t.Errorf("decision %d: desired, panicking = %d, %v, want %d, %v", i, got.Desired, got.Panicking, m.want, m.panicking)
				}
				if rests := got.Next == 0; rests != (m.want == 0) {
					t.Errorf("decision %d: next after %v", i, got.Next)
				}
			}
		})
	}
}

func TestDecideExcessBurstCapacity(t *testing.T) {
	for _, tc := range []struct {
		capacity float64
		ready    int32
		panic    float64
		want     int32
	}{
		{0, 3, 50, 0},
		{-1, 3, 50, -1},
		{211, 0, 0, -211},
		{211, 3, 50.5, 38},
		{1e12, 1, 0, -2147483648},
	} {
		c := configOf(routing.Autoscaling{BurstCapacity: &tc.capacity})
		in := input{Now: epoch, Sampled: true, Stable: tc.panic, Panic: tc.panic, Ready: tc.ready, Desired: tc.ready}
		if got := decide(&c, &in, &memory{}).ExcessBurstCapacity; got != tc.want {
			t.Errorf("burst capacity %v, %d ready, %v requests: excess = %d, want %d", tc.capacity, tc.ready, tc.panic, got, tc.want)
		}
	}
}

// TestDecideAfterResume keeps running backends until a whole window is sampled.
func TestDecideAfterResume(t *testing.T) {
	c := configOf(routing.Autoscaling{})
	for _, tc := range []struct {
		running, atOnce, later int32
	}{
		{running: 0}, {running: 1, atOnce: 1}, {running: 8, atOnce: 8, later: 4},
	} {
		var m memory
		m.resume(epoch, tc.running)
		for _, step := range []struct {
			after time.Duration
			want  int32
		}{{2 * time.Second, tc.atOnce}, {time.Minute, tc.atOnce}, {62 * time.Second, tc.later}} {
			in := input{Now: epoch.Add(step.after), Sampled: true, Ready: tc.running, Desired: tc.running}
			if got := decide(&c, &in, &m).Desired; got != step.want {
				t.Errorf("%d resumed, after %v: desired = %d, want %d", tc.running, step.after, got, step.want)
			}
		}
	}
}
