package kubernetes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/knative-apiserver/knative-apiserver/pkg/backoff"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/podspec"
)

const (
	minInterval = 10 * time.Millisecond
	maxInterval = time.Second
	// shareOfTime bounds how much longer a container seems to start because it is not probed all the time.
	shareOfTime = 20
	// perPod times the number of Pods that start is the least interval: 500 probes a second.
	perPod = 2 * time.Millisecond
	// patience is how long a container may run and fail its readiness probe before its revision is said to have failed,
	// which the first success revokes. Users learn of a wrong port within 10 seconds; slow containers have a startup
	// probe, or an initial delay.
	patience = 5 * time.Second
)

// pacer spaces probes, so that many Pods which start at the same time do not spend the processors on it.
type pacer struct{ starting atomic.Int64 }

// enter counts a Pod that starts, until leave is called.
func (p *pacer) enter() (leave func()) {
	p.starting.Add(1)
	return func() { p.starting.Add(-1) }
}

// interval is the time until the next probe of a Pod that has been probed for elapsed.
func (p *pacer) interval(elapsed time.Duration) time.Duration {
	interval := min(max(elapsed/shareOfTime, minInterval), maxInterval)
	return min(max(interval, time.Duration(p.starting.Load())*perPod), maxInterval)
}

// probe probes a Pod whose containers run until the kubelet finds it ready or ctx ends, and takes its word for it
// meanwhile. The kubelet would look once a second only.
func (r *revision) probe(ctx context.Context, p *pod) {
	rt := r.runtime
	r.Lock()
	steps := stepsOf(p.Pod)
	r.Unlock()
	leave := rt.pacer.enter()
	defer func() { leave() }()
	began := rt.clock.Now()
	for {
		step, err := firstFailure(ctx, steps, rt.clock.Now())
		if ctx.Err() != nil {
			return
		}
		now := rt.clock.Now()
		r.Lock()
		if ctx.Err() == nil {
			p.probed = err == nil
			switch {
			case err == nil:
				p.served, p.unhealthy = true, nil
			case !p.served && p.unhealthy == nil && step.impatient(now):
				p.unhealthy = &workload.Failure{Reason: reasonUnhealthy, Message: step.describe(err)}
			}
		}
		r.Unlock()
		interval := rt.pacer.interval(now.Sub(began))
		if err == nil {
			leave()
			leave = func() {}
			interval = maxInterval
		}
		if !backoff.Sleep(ctx, rt.clock, interval) {
			return
		}
	}
}

// step is a probe of one container that must pass, before those after it.
type step struct {
	name, container, port string
	// serving is true if the port is the one that takes requests.
	serving bool
	check   func(ctx context.Context) error
	// from is when it may be made first, until how long its failures are nothing to tell of.
	from, until time.Time
	// once passed, it is not made again.
	once, passed bool
}

// stepsOf returns the probes that make a Pod ready: each container's startup probe, then its readiness probe.
func stepsOf(pod *corev1.Pod) []*step {
	var starts, readiness []*step
	containers := lasting(&pod.Spec)
	serving := strconv.Itoa(int(podspec.ServingPort(pod.Spec.Containers)))
	for i := range containers {
		c := &containers[i]
		running := startOf(pod, c.Name)
		add := func(name string, spec *corev1.Probe, to *[]*step, budget time.Duration) {
			if spec == nil {
				return
			}
			from := running.Add(time.Duration(spec.InitialDelaySeconds) * time.Second)
			port := probedPort(spec, c)
			*to = append(*to, &step{
				name: name, container: c.Name, port: port, serving: port == serving, check: newCheck(spec, c, pod.Status.PodIP),
				from: from, until: from.Add(max(patience, budget)), once: name == startupProbe,
			})
		}
		var budget time.Duration
		if s := c.StartupProbe; s != nil {
			// The kubelet starts a container again that takes longer.
			budget = time.Duration(s.InitialDelaySeconds+cmp.Or(s.FailureThreshold, podspec.DefaultFailureThreshold)*cmp.Or(s.PeriodSeconds, podspec.DefaultProbePeriod)) * time.Second
		}
		add(startupProbe, c.StartupProbe, &starts, budget)
		add(readinessProbe, c.ReadinessProbe, &readiness, budget)
	}
	return slices.Concat(starts, readiness)
}

const (
	startupProbe   = "startup probe"
	readinessProbe = "readiness probe"
)

// startOf is when a container was started.
func startOf(pod *corev1.Pod, container string) time.Time {
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range statuses {
			if s := &statuses[i]; s.Name == container && s.State.Running != nil {
				return s.State.Running.StartedAt.Time
			}
		}
	}
	return time.Time{}
}

// firstFailure makes one probe after the other, and returns the first that fails.
func firstFailure(ctx context.Context, steps []*step, now time.Time) (*step, error) {
	for _, s := range steps {
		if s.once && s.passed {
			continue
		}
		if now.Before(s.from) {
			return s, fmt.Errorf("it is not made until %s", s.from.Format(time.TimeOnly))
		}
		if err := s.check(ctx); err != nil {
			return s, err
		}
		s.passed = true
	}
	return nil, nil
}

func (s *step) impatient(now time.Time) bool { return now.After(s.until) }

func (s *step) describe(err error) string {
	message := fmt.Sprintf("Container %q failed its %s: %v.", s.container, s.name, err)
	if dial := (*net.OpError)(nil); errors.As(err, &dial) && dial.Op == "dial" {
		if s.serving {
			message += " It must listen on the port that it is given as PORT, on all addresses."
		} else {
			message += fmt.Sprintf(" It must listen on port %s, which the probe names, on all addresses.", s.port)
		}
	}
	return message
}
