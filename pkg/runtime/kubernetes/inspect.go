package kubernetes

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/knative-apiserver/knative-apiserver/pkg/runtime"
)

const (
	// firstInspection is when a Pod is looked into whose containers are not created, and later ones come after
	// nextInspection each. Its status has nothing of a volume that cannot be mounted, or a network that fails.
	firstInspection = 3 * time.Second
	nextInspection  = 5 * time.Second
	// failedScheduling is the reason of the scheduler's Events, failedContainer that of the kubelet's about a container, whose
	// status says more.
	failedScheduling, failedContainer = "FailedScheduling", "Failed"
)

// inspect finds out from its Events why the containers of a Pod are not created, until ctx ends.
func (r *revision) inspect(ctx context.Context, p *pod) {
	r.mu.Lock()
	object := p.Pod
	r.mu.Unlock()
	wait := firstInspection
	for r.runtime.sleep(ctx, wait) {
		wait = nextInspection
		found, err := r.runtime.warning(ctx, object)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			r.runtime.logger.Info("Reading the Events of a Pod failed", "revision", r.key, "error", err.Error())
			continue
		}
		r.mu.Lock()
		// What was wrong may have been a moment's: the Pod is as it is until an Event says more.
		if found != nil && ctx.Err() == nil {
			p.stuck = found
		}
		r.unlock()
	}
}

// warning returns what the newest warning about a Pod says, or nil.
func (rt *Runtime) warning(ctx context.Context, pod *corev1.Pod) (*runtime.Failure, error) {
	selector := fields.Set{"involvedObject.uid": string(pod.UID), "type": corev1.EventTypeWarning}
	events, err := rt.client.CoreV1().Events(pod.Namespace).List(ctx, metav1.ListOptions{FieldSelector: selector.String()})
	if err != nil {
		return nil, err
	}
	// It has got a node since.
	events.Items = slices.DeleteFunc(events.Items, func(e corev1.Event) bool {
		return e.Reason == failedScheduling || e.Reason == failedContainer
	})
	if len(events.Items) == 0 {
		return nil, nil
	}
	newest := slices.MaxFunc(events.Items, func(a, b corev1.Event) int { return eventTime(&a).Compare(eventTime(&b)) })
	return &runtime.Failure{Resources: true, Reason: newest.Reason, Message: newest.Message}, nil
}

func eventTime(e *corev1.Event) time.Time {
	if !e.LastTimestamp.IsZero() {
		return e.LastTimestamp.Time
	}
	return e.EventTime.Time
}
