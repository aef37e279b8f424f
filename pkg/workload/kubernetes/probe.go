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
	// shareOfTime bounds the delay that the intervals between probes add to a start, as a fraction of the start's duration.
	shareOfTime = 20
	// perPod limits the rate of all probes to 500 per second.
	perPod = 2 * time.Millisecond
	// failureGrace is the time for which a running container may fail its readiness probe before its Revision is reported as
	// failed. The first success revokes the failure. Users learn about a wrong port within 10 seconds; slow containers have
	// a startup probe or an initial delay.
	failureGrace = 5 * time.Second
)

// pacer determines the intervals of probes, to save CPU time when many Pods start.
type pacer struct{ starting atomic.Int64 }

// enter counts a starting Pod until done is called.
func (p *pacer) enter() (done func()) {
	p.starting.Add(1)
	return func() { p.starting.Add(-1) }
}

// interval returns the time until the next probe of a Pod that has been probed for elapsed.
func (p *pacer) interval(elapsed time.Duration) time.Duration {
	interval := min(max(elapsed/shareOfTime, minInterval), maxInterval)
	return min(max(interval, time.Duration(p.starting.Load())*perPod), maxInterval)
}

// probe probes a Pod with running containers until ctx is canceled, which happens when the kubelet reports it as ready.
// Until then the Pod accepts requests while the probes pass. The kubelet probes at most once a second.
func (s *pods) probe(ctx context.Context, p *pod) {
	rt := s.runtime
	s.entry.Lock()
	steps := stepsOf(p.Pod)
	s.entry.Unlock()
	done := rt.pacer.enter()
	defer func() { done() }()
	began := rt.clock.Now()
	for {
		step, err := firstFailure(ctx, steps, rt.clock.Now())
		if ctx.Err() != nil {
			return
		}
		now := rt.clock.Now()
		s.entry.Lock()
		if ctx.Err() == nil {
			p.probed = err == nil
			switch {
			case err == nil:
				p.served, p.unhealthy = true, nil
				p.observeStart(now)
			case !p.served && p.unhealthy == nil && step.overdue(now):
				p.unhealthy = &workload.Failure{Reason: reasonUnhealthy, Message: step.describe(err)}
			}
		}
		s.entry.Unlock()
		interval := rt.pacer.interval(now.Sub(began))
		if err == nil {
			done()
			done = func() {}
			interval = maxInterval
		}
		if !backoff.Sleep(ctx, rt.clock, interval) {
			return
		}
	}
}

// step is a probe of one container that must pass before the next ones.
type step struct {
	name, container, port string
	// serving is true if port is the port for requests.
	serving bool
	check   func(ctx context.Context) error
	// from is the time of the first attempt. Failures before until are not reported.
	from, until time.Time
	// once is true if the probe is not repeated after it has passed.
	once, passed bool
}

// stepsOf returns the probes that determine the readiness of a Pod: all startup probes, then all readiness probes.
func stepsOf(pod *corev1.Pod) []*step {
	var starts, readiness []*step
	containers := longRunning(&pod.Spec)
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
				from: from, until: from.Add(max(failureGrace, budget)), once: name == startupProbe,
			})
		}
		var budget time.Duration
		if s := c.StartupProbe; s != nil {
			// The kubelet restarts a container that exceeds the budget.
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

// startOf returns the time at which a container was started.
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

// firstFailure runs the steps in order, and returns the first one that fails.
func firstFailure(ctx context.Context, steps []*step, now time.Time) (*step, error) {
	for _, s := range steps {
		if s.once && s.passed {
			continue
		}
		if now.Before(s.from) {
			return s, fmt.Errorf("its initial delay ends at %s", s.from.Format(time.TimeOnly))
		}
		if err := s.check(ctx); err != nil {
			return s, err
		}
		s.passed = true
	}
	return nil, nil
}

func (s *step) overdue(now time.Time) bool { return now.After(s.until) }

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
