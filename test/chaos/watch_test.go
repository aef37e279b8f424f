package chaos

import (
	"context"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/knative-apiserver/knative-apiserver/test/chaos/history"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// watcher watches the objects of the writers. It resumes at its last version, and lists again when that has been compacted.
type watcher struct {
	*site
	name string
	// version is the last version, empty before the first list.
	version string
}

func (w *watcher) resource() dynamic.ResourceInterface {
	return w.clients().Dynamic.Resource(harness.KindOf("Trigger").GVR()).Namespace(w.objects)
}

func (w *watcher) run(ctx context.Context) {
	for ctx.Err() == nil {
		if w.watch(ctx) != nil {
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}
}

// watch receives events until the watch ends.
func (w *watcher) watch(ctx context.Context) error {
	if w.version == "" {
		if err := w.list(ctx); err != nil {
			return err
		}
	}
	// A watch of limited duration resumes even if its connection is silent.
	events, err := w.resource().Watch(ctx, metav1.ListOptions{ResourceVersion: w.version, TimeoutSeconds: new(int64(10))})
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		w.version = ""
	}
	if err != nil {
		return err
	}
	defer events.Stop()
	idle := time.NewTimer(15 * time.Second)
	defer idle.Stop()
	for {
		select {
		case event, open := <-events.ResultChan():
			if !open {
				return nil
			}
			if event.Type == watch.Error {
				err := apierrors.FromObject(event.Object)
				if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
					w.version = ""
				}
				return err
			}
			w.record(map[watch.EventType]history.Change{
				watch.Added: history.Added, watch.Modified: history.Modified, watch.Deleted: history.Deleted,
			}[event.Type], event.Object.(*unstructured.Unstructured))
		case <-idle.C:
			return nil
		}
	}
}

func (w *watcher) list(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, attemptLimit)
	defer cancel()
	list, err := w.resource().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	w.version = list.GetResourceVersion()
	version, err := strconv.ParseUint(w.version, 10, 64)
	if err != nil {
		return err
	}
	at := w.recorder.now()
	w.recorder.record(func(h *history.History) {
		h.WatchEvents = append(h.WatchEvents, history.WatchEvent{Watch: w.name, Change: history.Listed, Version: version, At: at})
	})
	for i := range list.Items {
		w.record(history.Item, &list.Items[i])
	}
	return nil
}

func (w *watcher) record(change history.Change, u *unstructured.Unstructured) {
	namespace, _, version, err := observed(u)
	if err != nil {
		panic(err) // the server sent an invalid version
	}
	if change != history.Item {
		w.version = u.GetResourceVersion()
	}
	at := w.recorder.now()
	w.recorder.origin("watch "+w.name, w.objects, namespace)
	w.recorder.record(func(h *history.History) {
		h.WatchEvents = append(h.WatchEvents, history.WatchEvent{
			Watch: w.name, Change: change, Key: namespace + "/" + u.GetName(), Version: version, At: at,
		})
	})
}
