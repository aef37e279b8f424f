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

// check finds out how a container is, which may take as long as a timeout.
type check func(ctx context.Context, timeout time.Duration) error

// within returns the check that do makes, for which the timeout ends the context.
func within(do func(ctx context.Context) error) check {
	return func(ctx context.Context, timeout time.Duration) error {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		return do(ctx)
	}
}

// probe asks a container again and again how it is (serving 10.9).
type probe struct {
	check check
	// delay passes before the first check, period between two of them. Each may take timeout.
	delay, period, timeout time.Duration
	// success and failure are how many results in a row count.
	success, failure int
	// tight checks come as fast as the container may become healthy, until it does.
	tight bool
	// once healthy, a container is not checked again.
	once bool
	// impatient probes also report a container that has never been healthy.
	impatient bool
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

// newReadinessProbe returns a probe that reports whether a container takes requests. Without a period it is
// tight. A mere connection shows that once and for all: a process that listens does so until it exits.
func newReadinessProbe(spec *corev1.Probe, check check) *probe {
	p := newProbe(spec, check)
	p.tight = spec.PeriodSeconds == 0
	p.once = p.tight && spec.TCPSocket != nil
	return p
}

// newStartupProbe returns a probe that the others wait for.
func newStartupProbe(spec *corev1.Probe, check check) *probe {
	p := newProbe(spec, check)
	p.tight = spec.PeriodSeconds == 0
	p.once, p.impatient = true, true
	return p
}

// newLivenessProbe returns a probe that reports whether a container is to be started again. A process that was
// just started is alive: without a delay, the first check comes after a period.
func newLivenessProbe(spec *corev1.Probe, check check) *probe {
	p := newProbe(spec, check)
	p.healthy = true
	if p.delay == 0 {
		p.delay = p.period
	}
	return p
}

// watch calls report whenever the container becomes healthy, with nil, or ceases to be, with the last error.
// It returns when ctx is canceled or the result is final.
func (p *probe) watch(ctx context.Context, c clock.Clock, pace *pacer, report func(err error)) {
	if p.delay > 0 && !backoff.Sleep(ctx, c, p.delay) {
		return
	}
	tight := p.tight
	leave := func() {}
	if tight {
		leave = pace.enter()
	}
	defer func() { leave() }()
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
		// Tight checks fail many times; what counts is for how long.
		patient := tight && end.Sub(began) < time.Duration(p.failure)*p.period
		switch {
		case !healthy && passed >= p.success:
			healthy = true
			report(nil)
			if p.once {
				return
			}
			leave()
			leave, tight = func() {}, false
		case (healthy || p.impatient) && failed >= p.failure && !patient:
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

// pacer spaces tight checks, so that instances are found ready soon after they are, and many of them that
// start at the same time do not spend the processors on it.
type pacer struct{ starting atomic.Int64 }

const (
	minInterval = time.Millisecond
	maxInterval = time.Second
	// usualInterval bounds the intervals of the first second.
	usualInterval = 10 * time.Millisecond
	// shareOfInterval is what one check of one instance takes of all its time, at most.
	shareOfInterval = 4
	// perInstance times the number of instances that start is the least interval: 2,000 checks a second.
	perInstance = 500 * time.Microsecond
)

// enter counts an instance that starts, until leave is called.
func (p *pacer) enter() (leave func()) {
	p.starting.Add(1)
	return func() { p.starting.Add(-1) }
}

// interval is the time until the next check of an instance that started elapsed ago and whose last check took
// some time. It grows with the time that the instance needs anyway.
func (p *pacer) interval(elapsed, took time.Duration) time.Duration {
	interval := min(max(elapsed/20, minInterval), usualInterval)
	interval = max(interval, elapsed/100, took*shareOfInterval, time.Duration(p.starting.Load())*perInstance)
	return min(interval, maxInterval)
}

// defaultReadinessProbe is that of a serving container without one: something must listen at PORT.
func defaultReadinessProbe() *corev1.Probe {
	return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{}}}
}
