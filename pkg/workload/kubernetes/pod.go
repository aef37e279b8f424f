package kubernetes

import (
	"context"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/podspec"
)

// pod is a backend, ready or not. The lock of its revision guards it.
type pod struct {
	// Pod is the object from the host, trimmed. Immutable.
	*corev1.Pod
	// address is the host:port of the serving port, or empty.
	address string
	// probed is true if the last probe by this server succeeded. confirmed is true once the kubelet has reported the Pod as
	// ready, after which only the kubelet decides. served is true once the Pod has received requests.
	probed, confirmed, served bool
	// unhealthy describes long-lasting failures of probes, stuck why containers are not created.
	unhealthy, stuck *workload.Failure
	// start is when the steps of its start were observed, except for the scale.
	start workload.Start
	// drained closes idle.
	idle    chan struct{}
	drained func()

	probing, inspecting task
}

// task is a goroutine that runs while it is needed.
type task struct{ stop context.CancelFunc }

// run starts or stops the task.
func (t *task) run(ctx context.Context, wanted bool, do func(context.Context)) {
	switch {
	case wanted && t.stop == nil:
		ctx, t.stop = context.WithCancel(ctx)
		go do(ctx)
	case !wanted:
		t.end()
	}
}

func (t *task) end() {
	if t.stop != nil {
		t.stop()
		t.stop = nil
	}
}

func newPod() *pod {
	p := &pod{idle: make(chan struct{})}
	p.drained = sync.OnceFunc(func() { close(p.idle) })
	return p
}

// update stores the current object from the host.
func (p *pod) update(object *corev1.Pod) {
	first := p.Pod == nil
	p.Pod = object
	p.address = ""
	if object.Status.PodIP != "" {
		p.address = net.JoinHostPort(object.Status.PodIP, strconv.Itoa(int(podspec.ServingPort(object.Spec.Containers))))
	}
	if p.deleted() {
		// The Pod may have served requests before this server started.
		p.served = p.served || first && p.anyRunning()
		return
	}
	switch {
	case !p.allRunning():
		p.probed, p.confirmed, p.unhealthy = false, false, nil
	case p.conditionTrue(corev1.PodReady):
		p.probed, p.confirmed, p.unhealthy = false, true, nil
	}
	if !p.creating() {
		p.stuck = nil
	}
	p.served = p.served || p.ready()
}

// observeStart notes the steps of the start that are complete.
func (p *pod) observeStart(now time.Time) {
	for _, step := range []struct {
		at       *time.Time
		complete bool
	}{
		{&p.start.Created, true},
		{&p.start.Scheduled, p.conditionTrue(corev1.PodScheduled)},
		{&p.start.Started, p.allRunning()},
		{&p.start.Ready, p.ready()},
	} {
		if step.complete && step.at.IsZero() {
			*step.at = now
		}
	}
}

// stopTasks stops all tasks of a Pod.
func (p *pod) stopTasks() {
	for _, t := range []*task{&p.probing, &p.inspecting} {
		t.end()
	}
}

func (p *pod) deleted() bool { return p.DeletionTimestamp != nil }

func (p *pod) over() bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// ready reports whether the Pod accepts requests.
func (p *pod) ready() bool {
	return !p.deleted() && !p.over() && p.address != "" && (p.probed || p.conditionTrue(corev1.PodReady))
}

// draining reports whether the Pod may have requests left but accepts no new ones.
func (p *pod) draining() bool {
	return p.deleted() && !p.over() && p.served && p.address != "" && p.anyRunning()
}

// wantsProbe reports whether probes by this server may find the Pod ready sooner than the kubelet's. Exec probes, and
// probes that must pass several times, are left to the kubelet.
func (p *pod) wantsProbe() bool {
	kubeletOnly := func(probe *corev1.Probe) bool {
		return probe != nil && (probe.Exec != nil || probe.SuccessThreshold > 1)
	}
	return !p.deleted() && !p.over() && p.address != "" && !p.confirmed && p.allRunning() &&
		!slices.ContainsFunc(longRunning(&p.Spec), func(c corev1.Container) bool {
			return kubeletOnly(c.ReadinessProbe) || kubeletOnly(c.StartupProbe)
		})
}

// longRunning returns the containers that determine the readiness of a Pod: native sidecars and ordinary containers.
func longRunning(pod *corev1.PodSpec) []corev1.Container {
	var all []corev1.Container
	for i := range pod.InitContainers {
		if servingv1.IsNativeSidecar(&pod.InitContainers[i]) {
			all = append(all, pod.InitContainers[i])
		}
	}
	return append(all, pod.Containers...)
}

// creating reports whether the Pod has a node but no containers yet, for an unknown reason.
func (p *pod) creating() bool {
	if p.deleted() || p.Status.Phase != corev1.PodPending || !p.conditionTrue(corev1.PodScheduled) {
		return false
	}
	return !slices.ContainsFunc(slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses), func(s corev1.ContainerStatus) bool {
		w := s.State.Waiting
		return w == nil || s.RestartCount > 0 || w.Reason != "" && w.Reason != waitingCreating && w.Reason != waitingInitializing
	})
}

func (p *pod) anyRunning() bool {
	return slices.ContainsFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.State.Running != nil })
}

func (p *pod) allRunning() bool {
	running := 0
	for i := range p.Status.ContainerStatuses {
		if p.Status.ContainerStatuses[i].State.Running != nil {
			running++
		}
	}
	return running > 0 && running >= len(p.Spec.Containers)
}

func (p *pod) conditionTrue(t corev1.PodConditionType) bool {
	c := p.condition(t)
	return c != nil && c.Status == corev1.ConditionTrue
}

func (p *pod) condition(t corev1.PodConditionType) *corev1.PodCondition {
	for i := range p.Status.Conditions {
		if p.Status.Conditions[i].Type == t {
			return &p.Status.Conditions[i]
		}
	}
	return nil
}
