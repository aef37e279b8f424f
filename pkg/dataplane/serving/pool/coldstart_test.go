package pool

import (
	"testing"
	"time"

	"k8s.io/component-base/metrics"
	clocktesting "k8s.io/utils/clock/testing"
)

// TestColdStartPhases covers the duration of each phase of a cold start, and checks that each ends at most once.
func TestColdStartPhases(t *testing.T) {
	start := time.Unix(1, 0)
	// A step happens one second after the previous one. It ends a phase, or calls begin or cancel.
	type step struct {
		call string
		end  phase
		took time.Duration
		ok   bool
	}
	begin, second, cancel := step{call: "begin", ok: true}, step{call: "begin"}, step{call: "cancel"}
	ends := func(p phase, seconds int) step {
		return step{end: p, took: time.Duration(seconds) * time.Second, ok: true}
	}
	not := func(p phase) step { return step{end: p} }
	for name, steps := range map[string][]step{
		"none":                  {not(scheduling), not(starting), not(forwarding)},
		"complete":              {begin, ends(scheduling, 1), ends(starting, 1), ends(forwarding, 1), not(forwarding)},
		"begun twice":           {begin, second, ends(scheduling, 2)},
		"activated twice":       {begin, ends(scheduling, 1), not(scheduling), ends(starting, 2)},
		"backend at once":       {begin, ends(starting, 1), not(scheduling), ends(forwarding, 2)},
		"second backend":        {begin, ends(starting, 1), not(starting), ends(forwarding, 2)},
		"canceled":              {begin, cancel, not(starting), begin, ends(scheduling, 1)},
		"canceled with backend": {begin, ends(starting, 1), cancel, ends(forwarding, 2)},
		"next one":              {begin, ends(starting, 1), begin, not(forwarding), ends(starting, 2)},
	} {
		t.Run(name, func(t *testing.T) {
			var c coldStart
			for i, s := range steps {
				now := start.Add(time.Duration(i) * time.Second)
				took, ok := time.Duration(0), false
				switch s.call {
				case "begin":
					ok = c.begin(now)
				case "cancel":
					c.cancel()
				default:
					took, ok = c.end(s.end, now)
				}
				if ok != s.ok || ok && took != s.took {
					t.Errorf("step %d: %v, %t, want %v, %t", i, took, ok, s.took, s.ok)
				}
			}
		})
	}
}

type phaseMetric struct{ observed int }

func (m *phaseMetric) Observe(float64) { m.observed++ }

// TestBackendBeforeActivated checks that each phase is recorded once, also if a backend is ready before the activation ended.
func TestBackendBeforeActivated(t *testing.T) {
	var recorded [len(phases)]phaseMetric
	series := &Series{}
	for ph := range recorded {
		series.coldStart[ph] = metrics.ObserverMetric(&recorded[ph])
	}
	p := &Pool{pools: &Pools{options: Options{Clock: clocktesting.NewFakeClock(time.Unix(1, 0))}}}
	p.series.Store(series)
	p.beginColdStart()
	for _, ph := range []phase{starting, scheduling, forwarding} {
		p.endPhase(ph)
	}
	for ph, metric := range recorded {
		if metric.observed != 1 {
			t.Errorf("phase %s was recorded %d times, want once", phases[ph], metric.observed)
		}
	}
}
