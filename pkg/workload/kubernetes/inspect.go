package kubernetes

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/knative-apiserver/knative-apiserver/pkg/backoff"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

const (
	// firstInspection is the delay before the Events of a Pod without containers are read: its status does not report
	// volumes that cannot be mounted, or network failures. A replica that does not lead checks every nextInspection whether
	// it leads.
	firstInspection = 3 * time.Second
	nextInspection  = 5 * time.Second
	// failedScheduling is the reason of the scheduler's Events.
	failedScheduling = "FailedScheduling"
)

// inspect reads the reason why a Pod's containers are not created from its Events, until ctx is canceled.
func (s *pods) inspect(ctx context.Context, p *pod) {
	rt := s.runtime
	wait := firstInspection
	for backoff.Sleep(ctx, rt.clock, wait) {
		if rt.options.Leading() {
			break
		}
		wait = nextInspection
	}
	if ctx.Err() != nil {
		return
	}
	s.entry.Lock()
	object := p.Pod
	s.entry.Unlock()
	var newest time.Time
	rt.warnings.follow(ctx, object, func(e *corev1.Event) {
		s.entry.Lock()
		defer s.entry.Unlock()
		// The fault may have been transient: the failure holds until another Event.
		if at := eventTime(e); ctx.Err() == nil && !at.Before(newest) {
			newest, p.stuck = at, &workload.Failure{Resources: true, Reason: e.Reason, Message: e.Message}
		}
	})
}

func eventTime(e *corev1.Event) time.Time {
	if !e.LastTimestamp.IsZero() {
		return e.LastTimestamp.Time
	}
	return e.EventTime.Time
}

// warnings watches the warning Events of Pods, in namespaces with followed Pods.
type warnings struct {
	client kubernetes.Interface

	mu         sync.Mutex
	namespaces map[string]*followed
}

// followed is the watch of one namespace. The lock of warnings guards followers.
type followed struct {
	events    cache.SharedIndexInformer
	stop      context.CancelFunc
	followers map[types.UID]func(*corev1.Event)
}

// byPod indexes Events by the UID of the Pod.
const byPod = "pod"

// follow calls fn with each warning about a Pod, in any order, until ctx is canceled.
func (w *warnings) follow(ctx context.Context, pod *corev1.Pod, fn func(*corev1.Event)) {
	f := w.addFollower(ctx, pod, fn)
	defer w.removeFollower(pod)
	// Only a missing index would be an error.
	known, _ := f.events.GetIndexer().ByIndex(byPod, string(pod.UID))
	for _, obj := range known {
		f.notify(w, obj)
	}
	<-ctx.Done()
}

func (w *warnings) addFollower(ctx context.Context, pod *corev1.Pod, fn func(*corev1.Event)) *followed {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.namespaces[pod.Namespace]
	if f == nil {
		f = w.start(ctx, pod.Namespace)
		w.namespaces[pod.Namespace] = f
	}
	f.followers[pod.UID] = fn
	return f
}

func (w *warnings) removeFollower(pod *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.namespaces[pod.Namespace]
	if delete(f.followers, pod.UID); len(f.followers) == 0 {
		f.stop()
		delete(w.namespaces, pod.Namespace)
	}
}

// start watches a namespace until stop is called, independent of the cancellation of ctx. The caller holds w.mu.
func (w *warnings) start(ctx context.Context, namespace string) *followed {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	f := &followed{stop: stop, followers: map[types.UID]func(*corev1.Event){}}
	selector := fields.Set{"involvedObject.kind": "Pod", "type": corev1.EventTypeWarning}.String()
	f.events = coreinformers.NewFilteredEventInformer(w.client, namespace, 0, cache.Indexers{byPod: func(obj any) ([]string, error) {
		if e, ok := obj.(*corev1.Event); ok {
			return []string{string(e.InvolvedObject.UID)}, nil
		}
		return nil, nil
	}}, func(o *metav1.ListOptions) { o.FieldSelector = selector })
	// Only a stopped informer would return an error.
	_, _ = f.events.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { f.notify(w, obj) }, UpdateFunc: func(_, obj any) { f.notify(w, obj) },
	})
	go f.events.RunWithContext(ctx)
	return f
}

// notify passes an Event to the follower of its Pod. It skips Events that the Pod's status reports better: failures to
// schedule, and Events about a single container.
func (f *followed) notify(w *warnings, obj any) {
	e, ok := obj.(*corev1.Event)
	if !ok || e.Reason == failedScheduling || e.InvolvedObject.FieldPath != "" {
		return
	}
	w.mu.Lock()
	fn := f.followers[e.InvolvedObject.UID]
	w.mu.Unlock()
	if fn != nil {
		fn(e)
	}
}
