package autoscaler

import (
	"math"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// simulation is a pool of backends under load: each serves a number of requests at a time and needs time to start. Requests
// without a free backend wait. The simulation samples and decides like Loop.
type simulation struct {
	config config
	// load returns the number of requests per second at a time; each request lasts latency.
	load    func(at time.Duration) float64
	latency time.Duration
	// concurrency bounds the requests of a backend, startup is the time that a backend needs to start.
	concurrency float64
	startup     time.Duration
}

// point is the state of a simulation at the end of one second.
type point struct {
	at                time.Duration
	desired, ready    int32
	inFlight, waiting float64
	panicking         bool
}

// run simulates for length, from zero backends.
func (s *simulation) run(length time.Duration) []point {
	const step = 10 * time.Millisecond
	var (
		memory            memory
		window            = newWindow(s.config.StableWindow)
		points            []point
		starts            []time.Duration
		desired, ready    int32
		inFlight, waiting float64
		average, arrived  float64
		panicking         bool
	)
	decide := func(at time.Duration, in input) {
		in.Now, in.Ready, in.Desired = epoch.Add(at), ready, desired
		in.Waiting = int(math.Ceil(waiting))
		d := decide(&s.config, &in, &memory)
		for desired < d.Desired {
			starts, desired = append(starts, at+s.startup), desired+1
		}
		desired, panicking = d.Desired, d.Panicking
		starts = starts[:desired]
	}
	for at := step; at <= length; at += step {
		requests := s.load(at) * step.Seconds()
		waiting += requests
		arrived += requests
		inFlight -= inFlight * min(1, step.Seconds()/s.latency.Seconds())
		ready = 0
		for _, start := range starts {
			if start <= at {
				ready++
			}
		}
		room := max(0, float64(ready)*s.concurrency-inFlight)
		sent := min(room, waiting)
		inFlight, waiting = inFlight+sent, waiting-sent
		if waiting < 1e-6 {
			waiting = 0
		}
		if inFlight < 1e-3 {
			inFlight = 0
		}
		average += (inFlight + waiting) * step.Seconds()
		if desired == 0 && waiting > 0 {
			decide(at, input{})
		}
		if at%sampleInterval != 0 {
			continue
		}
		window.Add(epoch.Add(at), sampleInterval, Sample{Concurrency: average, RequestsPerSecond: arrived})
		average, arrived = 0, 0
		if at%tickInterval == 0 && desired > 0 {
			now := epoch.Add(at)
			stable, _ := window.average(now, s.config.StableWindow)
			latest, _ := window.average(now, s.config.PanicWindow)
			in := input{Sampled: true, Stable: stable.Concurrency, Panic: latest.Concurrency}
			if s.config.RPS {
				in.Stable, in.Panic = stable.RequestsPerSecond, latest.RequestsPerSecond
			}
			decide(at, in)
		}
		points = append(points, point{at, desired, ready, inFlight, waiting, panicking})
	}
	return points
}

func during(points []point, from, to time.Duration) []point {
	var found []point
	for _, p := range points {
		if p.at > from && p.at <= to {
			found = append(found, p)
		}
	}
	return found
}

// bounds returns the lowest and highest scale and the number of changes.
func bounds(points []point) (low, high int32, changes int) {
	low, high = points[0].desired, points[0].desired
	for i, p := range points {
		low, high = min(low, p.desired), max(high, p.desired)
		if i > 0 && p.desired != points[i-1].desired {
			changes++
		}
	}
	return low, high, changes
}

// constant returns a constant load that ends at until.
func constant(rps float64, until time.Duration) func(time.Duration) float64 {
	return func(at time.Duration) float64 {
		if at <= until {
			return rps
		}
		return 0
	}
}

// checkEnds asserts that no backend runs at the end, and that at least one ran for a stable window after the last request.
func checkEnds(t *testing.T, s *simulation, points []point, loadEnds time.Duration) {
	t.Helper()
	low, _, _ := bounds(during(points, loadEnds, loadEnds+s.config.StableWindow-tickInterval))
	if low < 1 {
		t.Errorf("at zero within the stable window after the last request")
	}
	for _, p := range during(points, loadEnds+2*s.config.StableWindow+20*time.Second, time.Hour) {
		if p.desired != 0 {
			t.Fatalf("%d instances %v after the last request", p.desired, p.at-loadEnds)
		}
	}
}

// TestStep starts a constant load: 200 requests in flight need ceil(200/7) = 29 backends.
func TestStep(t *testing.T) {
	s := &simulation{
		config: configOf(routing.Autoscaling{Target: ptr.To(10.0)}), concurrency: 10,
		load: constant(1000, 5*time.Minute), latency: 200 * time.Millisecond, startup: time.Second,
	}
	points := s.run(8 * time.Minute)
	served := 0
	for _, p := range points {
		if p.ready >= 20 && p.waiting == 0 {
			break
		}
		served++
	}
	if served > 5 {
		t.Errorf("%d seconds until all requests are served, want at most 5", served)
	}
	// Requests queue while backends start: more backends are needed until the queue is empty.
	if _, high, _ := bounds(points); high > 29*7 {
		t.Errorf("%d instances at most, for a need of 29", high)
	}
	low, high, changes := bounds(during(points, 3*time.Minute, 5*time.Minute))
	if low != 29 || high != 29 || changes != 0 {
		t.Errorf("between %d and %d instances, %d changes at constant load, want 29 and no change", low, high, changes)
	}
	checkEnds(t, s, points, 5*time.Minute)
}

// TestStepOnRPS is TestStep on requests per second, which do not queue: no overshoot.
func TestStepOnRPS(t *testing.T) {
	s := &simulation{
		config: configOf(routing.Autoscaling{RPS: true, Target: ptr.To(50.0)}), concurrency: 20,
		load: constant(1000, 5*time.Minute), latency: 200 * time.Millisecond, startup: time.Second,
	}
	points := s.run(8 * time.Minute)
	low, high, _ := bounds(during(points, 4*time.Second, 5*time.Minute))
	if low != 29 || high != 29 {
		t.Errorf("between %d and %d instances, want 1000/35 = 29", low, high)
	}
	checkEnds(t, s, points, 5*time.Minute)
}

// TestTrickle keeps one backend for a request every 10 seconds, and none after the last.
func TestTrickle(t *testing.T) {
	s := &simulation{
		config: configOf(routing.Autoscaling{}), concurrency: 10, latency: 50 * time.Millisecond, startup: 100 * time.Millisecond,
		load: func(at time.Duration) float64 {
			if at%(10*time.Second) == 0 && at <= 5*time.Minute {
				return 100
			}
			return 0
		},
	}
	points := s.run(8 * time.Minute)
	low, high, changes := bounds(during(points, 10*time.Second, 5*time.Minute))
	if low != 1 || high != 1 || changes != 0 {
		t.Errorf("between %d and %d instances, %d changes, want 1 all the time", low, high, changes)
	}
	checkEnds(t, s, points, 5*time.Minute)
}

// TestRamp grows the load for five minutes from 0 to 300 in flight: no request waits long.
func TestRamp(t *testing.T) {
	s := &simulation{
		config: configOf(routing.Autoscaling{Target: ptr.To(10.0)}), concurrency: 10, latency: 100 * time.Millisecond, startup: 500 * time.Millisecond,
		load: func(at time.Duration) float64 {
			if at > 5*time.Minute {
				return 0
			}
			return 3000 * at.Minutes() / 5
		},
	}
	points := s.run(10 * time.Minute)
	for _, p := range during(points, 30*time.Second, 5*time.Minute) {
		load := s.load(p.at)
		if p.waiting > load*2 {
			t.Errorf("%v: %.0f requests wait at %.0f a second", p.at, p.waiting, load)
		}
		if need := load * 0.1 / 7; float64(p.desired) > 2.5*need+5 {
			t.Errorf("%v: %d instances for a need of %.0f", p.at, p.desired, need)
		}
	}
	checkEnds(t, s, points, 5*time.Minute)
}

// TestBurst sends ten times the load for 20 seconds: panic mode scales up within a few ticks, does not scale down, and ends.
func TestBurst(t *testing.T) {
	const begins, ends = 3 * time.Minute, 3*time.Minute + 20*time.Second
	s := &simulation{
		config: configOf(routing.Autoscaling{Target: ptr.To(10.0)}), concurrency: 10, latency: 100 * time.Millisecond, startup: 500 * time.Millisecond,
		load: func(at time.Duration) float64 {
			switch {
			case at > 8*time.Minute:
				return 0
			case at > begins && at <= ends:
				return 2000
			}
			return 200
		},
	}
	points := s.run(12 * time.Minute)
	if low, high, _ := bounds(during(points, 2*time.Minute, begins)); low != 3 || high != 3 {
		t.Errorf("before the burst, between %d and %d instances, want 200 x 0.1 / 7 = 3", low, high)
	}
	panicked := during(points, begins, begins+6*time.Second)
	if last := panicked[len(panicked)-1]; !last.panicking || last.ready < 20 {
		t.Errorf("6s into the burst: panicking = %v with %d ready, want what 200 in flight need, 20", last.panicking, last.ready)
	}
	for i, p := range points[1:] {
		if p.panicking && points[i].panicking && p.desired < points[i].desired {
			t.Errorf("%v: from %d down to %d instances while panicking", p.at, points[i].desired, p.desired)
		}
	}
	after := during(points, 6*time.Minute, 8*time.Minute)
	if low, high, _ := bounds(after); low != 3 || high != 3 || after[0].panicking {
		t.Errorf("after the burst, between %d and %d instances, panicking = %v, want 3 at rest", low, high, after[0].panicking)
	}
	checkEnds(t, s, points, 8*time.Minute)
}

// TestSine varies slowly between 20 and 180 in flight: the scale follows, and is always sufficient for the load.
func TestSine(t *testing.T) {
	s := &simulation{
		config: configOf(routing.Autoscaling{Target: ptr.To(10.0)}), concurrency: 10, latency: 100 * time.Millisecond, startup: 500 * time.Millisecond,
		load: func(at time.Duration) float64 {
			if at > 30*time.Minute {
				return 0
			}
			return 1000 + 800*math.Sin(2*math.Pi*at.Minutes()/10)
		},
	}
	points := s.run(35 * time.Minute)
	settled := during(points, 2*time.Minute, 30*time.Minute)
	for _, p := range settled {
		if p.waiting > 0.5*s.load(p.at) {
			t.Errorf("%v: %.0f requests wait at %.0f a second", p.at, p.waiting, s.load(p.at))
		}
	}
	low, high, _ := bounds(settled)
	if low < 2 || low > 6 || high < 25 || high > 35 {
		t.Errorf("between %d and %d instances, want 2 to 6 and 25 to 35 (180/7 = 26)", low, high)
	}
	turns, direction := 0, 0
	for i := 1; i < len(settled); i++ {
		change := int(settled[i].desired - settled[i-1].desired)
		if change*direction < 0 {
			turns++
		}
		if change != 0 {
			direction = change
		}
	}
	// Three periods of ten minutes turn six times.
	if turns > 8 {
		t.Errorf("scale changed its direction %d times, want about 6", turns)
	}
	checkEnds(t, s, points, 30*time.Minute)
}

// TestDropToZero checks that a large pool at most halves per tick, once the stable window no longer holds the load.
func TestDropToZero(t *testing.T) {
	s := &simulation{
		config: configOf(routing.Autoscaling{Target: ptr.To(10.0), RPS: true}), concurrency: 100,
		load: constant(700, 2*time.Minute), latency: 50 * time.Millisecond, startup: 100 * time.Millisecond,
	}
	points := s.run(6 * time.Minute)
	if low, high, _ := bounds(during(points, 30*time.Second, 2*time.Minute)); low != 100 || high != 100 {
		t.Errorf("between %d and %d instances, want 100", low, high)
	}
	for i := 2; i < len(points); i++ {
		if from, to := points[i-2].desired, points[i].desired; from > 1 && to < from/2 {
			t.Errorf("%v: from %d to %d instances in a tick", points[i].at, from, to)
		}
	}
	checkEnds(t, s, points, 2*time.Minute)
}

// TestNoisyLoadDoesNotFlap varies the load by a tenth each second.
func TestNoisyLoadDoesNotFlap(t *testing.T) {
	s := &simulation{
		config: configOf(routing.Autoscaling{Target: ptr.To(10.0)}), concurrency: 10, latency: 100 * time.Millisecond, startup: 500 * time.Millisecond,
		load: func(at time.Duration) float64 {
			if int(at.Seconds())%2 == 0 {
				return 1100
			}
			return 900
		},
	}
	low, high, changes := bounds(during(s.run(10*time.Minute), 3*time.Minute, 10*time.Minute))
	if high-low > 1 || changes > 2 {
		t.Errorf("between %d and %d instances, %d changes", low, high, changes)
	}
}
