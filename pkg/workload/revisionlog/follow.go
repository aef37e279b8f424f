package revisionlog

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	informerscorev1 "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// reconnecting is the delay before an interrupted stream of a running container is opened again.
const reconnecting = time.Second

// run is one run of a container of a Pod.
type run struct {
	pod       types.UID
	container string
	id        string
}

// follower copies the logs of Pods as lines are written.
type follower struct {
	*Pods
	options    *servingv1.RevisionLogOptions
	containers []string
	informer   cache.SharedIndexInformer
	write      func(Line) error
	// stop cancels all copying with an error.
	stop context.CancelCauseFunc

	running sync.WaitGroup
	// mu guards the fields below. copied has all runs whose copying has started; ended is true once Copy is about to
	// return.
	mu     sync.Mutex
	copied map[run]bool
	ended  bool
}

// follow copies the logs of all present and future Pods that match a selector until ctx is canceled.
func (p *Pods) follow(ctx context.Context, namespace, selector string, containers []string, options *servingv1.RevisionLogOptions, write func(Line) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	f := &follower{
		Pods: p, options: options, containers: containers, write: write, stop: stop, copied: map[run]bool{},
		informer: informerscorev1.NewFilteredPodInformer(p.Client, namespace, 0, cache.Indexers{}, func(o *metav1.ListOptions) { o.LabelSelector = selector }),
	}
	_, err := f.informer.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		// The options apply to earlier lines only.
		AddFunc:    func(obj any, initial bool) { f.copyPod(ctx, obj, initial) },
		UpdateFunc: func(_, current any) { f.copyPod(ctx, current, false) },
	})
	if err != nil {
		return fmt.Errorf("watch Pods: %w", err)
	}
	f.informer.RunWithContext(ctx)
	f.mu.Lock()
	f.ended = true
	f.mu.Unlock()
	f.running.Wait()
	return context.Cause(ctx)
}

// copyPod starts to copy the new runs of a Pod's containers.
func (f *follower) copyPod(ctx context.Context, obj any, initial bool) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, container := range f.containers {
		r := run{pod.UID, container, started(pod, container)}
		if r.id == "" || f.copied[r] || f.ended {
			continue
		}
		f.copied[r] = true
		options := &corev1.PodLogOptions{Container: container, Follow: true}
		if initial {
			options = logOptions(container, f.options)
		}
		f.running.Go(func() {
			if err := f.copyRun(ctx, pod, r, options); err != nil {
				f.stop(err)
			}
		})
	}
}

// copyRun copies one run of a container until the run ends. Interrupted streams are opened again.
func (f *follower) copyRun(ctx context.Context, pod *corev1.Pod, r run, options *corev1.PodLogOptions) error {
	for {
		if err := f.copy(ctx, pod, options, f.write); err != nil {
			return err
		}
		since := metav1.Now()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(reconnecting):
		}
		obj, ok, err := f.informer.GetIndexer().GetByKey(pod.Namespace + "/" + pod.Name)
		if err != nil {
			return err
		}
		current, _ := obj.(*corev1.Pod)
		if !ok || current.UID != r.pod || !running(current, r.container, r.id) {
			return nil
		}
		options = &corev1.PodLogOptions{Container: r.container, Follow: true, SinceTime: &since}
	}
}
