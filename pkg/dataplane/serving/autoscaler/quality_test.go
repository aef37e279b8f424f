package autoscaler

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// workloadTrace is a sequence of requests to one Revision.
type workloadTrace struct {
	config config
	// concurrency bounds the requests of a backend, startup is the time that a backend needs to start.
	concurrency int
	startup     time.Duration
	requests    []traced
	length      time.Duration
}

// traced is a request of a trace: when it arrives and how long a backend works on it.
type traced struct{ at, works time.Duration }

// policy decides about scale. arrival is true for a request that waits while no backend is ready, in.Sampled at a tick. Otherwise it is called for
// the sample between two ticks.
type policy interface {
	decide(c *config, in *input, arrival bool) int32
}

// quality is what users and operators notice of the decisions about a trace.
type quality struct {
	// latencies are the durations of requests, with their wait.
	latencies []time.Duration
	// cold is the number of requests that arrived when no backend was ready.
	cold int
	// seconds is the time of all backends, ideal the least with which no request would have waited, in seconds.
	seconds, ideal float64
}

func (q *quality) add(other *quality) {
	q.latencies = append(q.latencies, other.latencies...)
	q.cold += other.cold
	q.seconds += other.seconds
	q.ideal += other.ideal
}

// summary is a row of the table.
type summary struct {
	mean, p50, p95, p99 time.Duration
	// cold is the number of cold requests of 1,000.
	cold float64
	// above and times compare the time of all backends with the ideal: the difference in seconds, and the ratio.
	above, times float64
}

func (q *quality) summary() summary {
	sorted, total := slices.Sorted(slices.Values(q.latencies)), time.Duration(0)
	for _, latency := range sorted {
		total += latency
	}
	p := func(share float64) time.Duration { return sorted[int(share*float64(len(sorted)-1))] }
	n := len(sorted)
	return summary{
		mean: total / time.Duration(n), p50: p(0.5), p95: p(0.95), p99: p(0.99), cold: 1000 * float64(q.cold) / float64(n),
		above: q.seconds - q.ideal, times: q.seconds / q.ideal,
	}
}

// simulate runs a trace under a policy, in steps.
func (w *workloadTrace) simulate(p policy) quality {
	const step = 10 * time.Millisecond
	var (
		q              quality
		window         = newWindow(w.config.StableWindow)
		starts         []time.Duration // when each backend is ready
		queue          []traced
		ends           []time.Duration // of the requests at backends
		desired, ready int32
		busy, arrived  float64
		next           int
	)
	// The ideal has the backends that the requests need if none waits.
	needs := make([]int32, int(w.length/step)+1)
	for _, r := range w.requests {
		for at := r.at / step; at <= (r.at+r.works)/step && int(at) < len(needs); at++ {
			needs[at]++
		}
	}
	decide := func(at time.Duration, in input, arrival bool) {
		in.Now, in.Ready, in.Desired, in.Waiting = epoch.Add(at), ready, desired, len(queue)
		wanted := p.decide(&w.config, &in, arrival)
		for desired < wanted {
			starts, desired = append(starts, at+w.startup), desired+1
		}
		desired, starts = wanted, starts[:wanted]
	}
	for at := step; at <= w.length; at += step {
		ends = slices.DeleteFunc(ends, func(end time.Duration) bool { return end <= at })
		ready = 0
		for _, start := range starts {
			if start <= at {
				ready++
			}
		}
		for ; next < len(w.requests) && w.requests[next].at <= at; next++ {
			queue = append(queue, w.requests[next])
			arrived++
			if ready == 0 {
				q.cold++
			}
		}
		for len(queue) > 0 && len(ends) < int(ready)*w.concurrency {
			r := queue[0]
			queue = queue[1:]
			end := at + r.works
			ends = append(ends, end)
			q.latencies = append(q.latencies, end-r.at)
		}
		busy += float64(len(ends)+len(queue)) * step.Seconds()
		q.seconds += float64(desired) * step.Seconds()
		q.ideal += math.Ceil(float64(needs[at/step])/float64(w.concurrency)) * step.Seconds()
		if len(queue) > 0 && (desired == 0 || ready == 0) {
			decide(at, input{}, true)
		}
		if at%sampleInterval != 0 {
			continue
		}
		if desired == 0 {
			window, busy, arrived = newWindow(w.config.StableWindow), 0, 0
			continue
		}
		window.Add(epoch.Add(at), sampleInterval, Sample{Concurrency: busy, RequestsPerSecond: arrived})
		busy, arrived = 0, 0
		if at%tickInterval != 0 {
			decide(at, input{}, false)
		} else {
			stable, _ := window.average(epoch.Add(at), w.config.StableWindow)
			latest, _ := window.average(epoch.Add(at), w.config.PanicWindow)
			decide(at, input{Sampled: true, Stable: stable.Concurrency, Panic: latest.Concurrency}, false)
		}
	}
	return q
}

// ours is the policy of this package.
type ours struct {
	memory    memory
	activated time.Time
}

func (o *ours) decide(c *config, in *input, arrival bool) int32 {
	if arrival && in.Desired > 0 {
		return in.Desired
	}
	if in.Ready == 0 && in.Now.Sub(o.activated) < tickInterval {
		in.Sampled = false
	}
	if !in.Sampled && in.Desired > 0 && in.Ready > 0 {
		return in.Desired
	}
	d := decide(c, in, &o.memory)
	if in.Desired == 0 && d.Desired > 0 {
		o.activated = in.Now
	}
	return d.Desired
}

// knative is the algorithm of the Knative Pod Autoscaler: the averages of two windows, panic mode, the rates, and the last Pod that stays for a stable
// window without requests. The grace period of 30 s has no effect with the default burst capacity, with which requests pass the activator anyway.
type knative struct {
	started, panicked time.Time
	panicScale        int32
}

func (k *knative) decide(c *config, in *input, arrival bool) int32 {
	if arrival || !in.Sampled {
		if in.Desired == 0 {
			k.started = in.Now
		}
		return max(in.Desired, 1)
	}
	ready := math.Max(1, float64(in.Ready))
	of := func(average float64) int32 {
		most, least := math.Ceil(c.MaxScaleUpRate*ready), math.Floor(ready/c.MaxScaleDownRate)
		return int32(math.Min(math.Max(math.Ceil(average/c.Target), least), most))
	}
	if math.Ceil(in.Panic/c.Target)/ready >= c.PanicThreshold {
		k.panicked = in.Now
	} else if in.Now.Sub(k.panicked) > c.StableWindow {
		k.panicked, k.panicScale = time.Time{}, 0
	}
	desired := of(in.Stable)
	if !k.panicked.IsZero() {
		k.panicScale = max(k.panicScale, desired, of(in.Panic))
		desired = k.panicScale
	}
	if in.Waiting > 0 || in.Now.Sub(k.started) < c.StableWindow {
		return max(desired, 1)
	}
	return desired
}

// poisson returns requests that arrive independently of each other at a rate per second that changes over time, each with an exponentially
// distributed work.
func poisson(random *rand.Rand, length time.Duration, highest float64, rate func(at time.Duration) float64, works time.Duration) (all []traced) {
	for at := time.Duration(0); ; {
		at += time.Duration(random.ExpFloat64() / highest * float64(time.Second))
		if at >= length {
			return all
		}
		if random.Float64() < rate(at)/highest {
			all = append(all, traced{at, time.Duration(random.ExpFloat64() * float64(works))})
		}
	}
}

// scenarios returns the traces of each scenario.
func scenarios(random *rand.Rand) map[string][]workloadTrace {
	trace := func(length time.Duration, concurrency int, requests []traced) workloadTrace {
		return workloadTrace{
			config: configOf(routing.Autoscaling{Target: ptr.To(float64(concurrency))}), concurrency: concurrency, startup: 1500 * time.Millisecond,
			requests: requests, length: length + 3*time.Minute,
		}
	}
	const works = 100 * time.Millisecond
	var functions []workloadTrace
	for range 300 {
		// Shahrad et al., "Serverless in the Wild" (2020): rates spread over eight orders of magnitude, and 81 % of applications are called
		// once a minute or less on average; the mean duration of functions is log-normal with a median of 0.68 s.
		const length = time.Hour
		rate := math.Exp(random.NormFloat64()*3.0 - 6.7)
		mean := min(math.Exp(-0.38+2.36*random.NormFloat64()), 60)
		if rate*mean > 20 {
			continue
		}
		requests := poisson(random, length, rate, func(time.Duration) float64 { return rate }, time.Duration(mean*float64(time.Second)))
		if len(requests) > 0 {
			functions = append(functions, trace(length, 1, requests))
		}
	}
	return map[string][]workloadTrace{
		"1 steady": {trace(20*time.Minute, 10, poisson(random, 20*time.Minute, 300, func(time.Duration) float64 { return 300 }, works))},
		"2 diurnal": {trace(time.Hour, 10, poisson(random, time.Hour, 400, func(at time.Duration) float64 {
			return 200 - 200*math.Cos(2*math.Pi*at.Minutes()/30)
		}, works))},
		"3 spike": {trace(15*time.Minute, 10, poisson(random, 15*time.Minute, 1000, func(at time.Duration) float64 {
			if at%(5*time.Minute) < 20*time.Second {
				return 1000
			}
			return 50
		}, works))},
		"4 bursts": {trace(15*time.Minute, 10, poisson(random, 15*time.Minute, 500, func(at time.Duration) float64 {
			if at%(30*time.Second) < 5*time.Second {
				return 500
			}
			return 20
		}, works))},
		"5 on-off": {trace(40*time.Minute, 10, poisson(random, 40*time.Minute, 200, func(at time.Duration) float64 {
			if at%(4*time.Minute) < time.Minute {
				return 200
			}
			return 0
		}, works))},
		"6 burst at zero": {trace(40*time.Minute, 1, poisson(random, 40*time.Minute, 100, func(at time.Duration) float64 {
			if at%(4*time.Minute) < time.Second {
				return 100
			}
			return 0
		}, time.Second))},
		"7 functions": functions,
	}
}

// TestQuality prints how the decisions compare with the ones of Knative's algorithm, and checks that they are not worse: that requests take no longer,
// and that no more backends run.
func TestQuality(t *testing.T) {
	t.Parallel()
	// worse is the factor by which a duration may exceed Knative's: a backend that stops earlier may be missed by the next request.
	const worse = 1.05
	all := scenarios(rand.New(rand.NewPCG(1, 2)))
	var table strings.Builder
	fmt.Fprintf(&table, "\n%-16s %-8s %8s %8s %8s %8s %11s %20s %10s\n", "trace", "", "mean", "p50", "p95", "p99", "cold/1,000", "backend-s over ideal", "of ideal")
	for _, name := range slices.Sorted(maps.Keys(all)) {
		run := func(title string, newPolicy func() policy) summary {
			var sum quality
			for i := range all[name] {
				q := all[name][i].simulate(newPolicy())
				sum.add(&q)
			}
			if requests := len(sum.latencies); requests < 1000 {
				t.Errorf("%s: only %d requests were served", name, requests)
			}
			s := sum.summary()
			seconds := func(d time.Duration) string { return fmt.Sprintf("%.3fs", d.Seconds()) }
			fmt.Fprintf(&table, "%-16s %-8s %8s %8s %8s %8s %11.2f %20.0f %9.2fx\n",
				name, title, seconds(s.mean), seconds(s.p50), seconds(s.p95), seconds(s.p99), s.cold, s.above, s.times)
			return s
		}
		theirs := run("Knative", func() policy { return &knative{} })
		our := run("this", func() policy { return &ours{} })
		if our.mean > time.Duration(worse*float64(theirs.mean)) || our.p99 > time.Duration(worse*float64(theirs.p99)) || our.above > theirs.above {
			t.Errorf("%s: %+v is worse than Knative's algorithm: %+v", name, our, theirs)
		}
	}
	t.Log(table.String())
}
