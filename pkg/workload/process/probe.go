package process

import (
	"context"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/backoff"
)

// Defaults of core/v1 for probes.
const (
	defaultPeriod           = 10 * time.Second
	defaultTimeout          = time.Second
	defaultFailureThreshold = 3
)

// check checks the health of a container within a timeout.
type check func(ctx context.Context, timeout time.Duration) error

// within returns a check that runs do with a context that is canceled after the timeout.
func within(do func(ctx context.Context) error) check {
	return func(ctx context.Context, timeout time.Duration) error {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		return do(ctx)
	}
}

// probe checks a container periodically (serving 10.9).
type probe struct {
	check check
	// delay is the time before the first check, period the time between two checks, timeout the limit for each.
	delay, period, timeout time.Duration
	// success and failure are the numbers of equal results in a row that change the state.
	success, failure int
	// tight probes ignore the period until the container is healthy: the pacer determines their intervals.
	tight bool
	// once is true if the probe stops when the container is healthy.
	once bool
	// failsInitially is true if the probe also reports a container that has never been healthy.
	failsInitially bool
	// healthy is the initial state of the container.
	healthy bool
}

func newProbe(spec *corev1.Probe, check check) *probe {
	seconds := func(n int32, otherwise time.Duration) time.Duration {
		if n <= 0 {
			return otherwise
		}
		return time.Duration(n) * time.Second
	}
	p := &probe{
		check:   check,
		delay:   seconds(spec.InitialDelaySeconds, 0),
		period:  seconds(spec.PeriodSeconds, defaultPeriod),
		timeout: seconds(spec.TimeoutSeconds, defaultTimeout),
		success: max(int(spec.SuccessThreshold), 1),
		failure: int(spec.FailureThreshold),
	}
	if p.failure <= 0 {
		p.failure = defaultFailureThreshold
	}
	return p
}

// newReadinessProbe returns a probe that reports whether a container accepts requests. Without a period it is tight. A TCP
// probe then stops after the first success, because the process listens until it exits.
func newReadinessProbe(spec *corev1.Probe, check check) *probe {
	p := newProbe(spec, check)
	p.tight = spec.PeriodSeconds == 0
	p.once = p.tight && spec.TCPSocket != nil
	return p
}

// newStartupProbe returns a probe that must pass before the others start.
func newStartupProbe(spec *corev1.Probe, check check) *probe {
	p := newProbe(spec, check)
	p.tight = spec.PeriodSeconds == 0
	p.once, p.failsInitially = true, true
	return p
}

// newLivenessProbe returns a probe that reports whether a container must be restarted. A process is initially alive:
// without a delay, the first check is made after one period.
func newLivenessProbe(spec *corev1.Probe, check check) *probe {
	p := newProbe(spec, check)
	p.healthy = true
	if p.delay == 0 {
		p.delay = p.period
	}
	return p
}

// watch calls report with nil when the container becomes healthy, and with the last error when it becomes unhealthy. It
// returns when ctx is canceled or the result is final.
func (p *probe) watch(ctx context.Context, c clock.Clock, pace *pacer, report func(err error)) {
	if p.delay > 0 && !backoff.Sleep(ctx, c, p.delay) {
		return
	}
	tight := p.tight
	done := func() {}
	if tight {
		done = pace.enter()
	}
	defer func() { done() }()
	began := c.Now()
	healthy, passed, failed := p.healthy, 0, 0
	for {
		start := c.Now()
		err := p.check(ctx, p.timeout)
		if ctx.Err() != nil {
			return
		}
		end := c.Now()
		if err == nil {
			passed, failed = passed+1, 0
		} else {
			passed, failed = 0, failed+1
		}
		// Tight checks fail often, so their failure is limited by time instead of number.
		inTime := tight && end.Sub(began) < time.Duration(p.failure)*p.period
		switch {
		case !healthy && passed >= p.success:
			healthy = true
			report(nil)
			if p.once {
				return
			}
			done()
			done, tight = func() {}, false
		case (healthy || p.failsInitially) && failed >= p.failure && !inTime:
			healthy, failed = false, 0
			report(err)
		}
		next := p.period
		if tight {
			next = pace.interval(end.Sub(began), end.Sub(start))
		}
		if !backoff.Sleep(ctx, c, next) {
			return
		}
	}
}

// pacer determines the intervals of tight checks: short enough to find backends ready without delay, long enough to save
// CPU time when many backends start.
type pacer struct{ starting atomic.Int64 }

const (
	minInterval = time.Millisecond
	maxInterval = time.Second
	// usualInterval bounds the interval during the first second.
	usualInterval = 10 * time.Millisecond
	// shareOfInterval is the minimum ratio of the interval to the duration of a check.
	shareOfInterval = 4
	// perBackend limits the rate of all checks to 2,000 per second.
	perBackend = 500 * time.Microsecond
)

// enter counts a starting backend until done is called.
func (p *pacer) enter() (done func()) {
	p.starting.Add(1)
	return func() { p.starting.Add(-1) }
}

// interval returns the time until the next check of a backend that started elapsed ago and whose last check took the given
// time. It grows with the time that the backend needs to start.
func (p *pacer) interval(elapsed, took time.Duration) time.Duration {
	interval := min(max(elapsed/20, minInterval), usualInterval)
	interval = max(interval, elapsed/100, took*shareOfInterval, time.Duration(p.starting.Load())*perBackend)
	return min(interval, maxInterval)
}

// defaultReadinessProbe returns the probe of a serving container without one: PORT must accept connections.
func defaultReadinessProbe() *corev1.Probe {
	return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{}}}
}
