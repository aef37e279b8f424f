package apiserver

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/tools/cache"

	"github.com/knative-apiserver/knative-apiserver/pkg/registry"
)

// Stored lists and watches the objects of one resource of this server without requests, from the same watch cache: nothing is encoded
// and decoded. It is for informers in this process, which see all objects.
type Stored struct{ storage *registry.REST }

// readyInterval is the time between two questions whether a watch cache has read all objects. The library reports no event.
const readyInterval = 10 * time.Millisecond

var _ cache.ListerWatcherWithContext = Stored{}

// stored returns the resources of API groups that are in etcd.
func stored(infos []*genericapiserver.APIGroupInfo) []Stored {
	var all []Stored
	for _, info := range infos {
		for _, resources := range info.VersionedResourcesStorageMap {
			for _, storage := range resources {
				if r, ok := storage.(*registry.REST); ok {
					all = append(all, Stored{r})
				}
			}
		}
	}
	return all
}

// New returns an empty object.
func (s Stored) New() runtime.Object { return s.storage.New() }

// List implements cache.Lister.
func (s Stored) List(options metav1.ListOptions) (runtime.Object, error) {
	return s.ListWithContext(context.Background(), options)
}

// Watch implements cache.Watcher.
func (s Stored) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return s.WatchWithContext(context.Background(), options)
}

// ListWithContext returns the objects of all namespaces, once the watch cache has read them. They share memory with the watch cache: only
// their own fields may be changed, nothing that these point to.
func (s Stored) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	internal, err := internalOptions(options)
	if err != nil {
		return nil, err
	}
	// The watch cache would reject the list, and the informer would wait for a second or more before its next attempt.
	ready := func(context.Context) (bool, error) { return s.storage.Storage.Storage.ReadinessCheck() == nil, nil }
	if err := wait.PollUntilContextCancel(ctx, readyInterval, true, ready); err != nil {
		return nil, err
	}
	return s.storage.List(ctx, internal)
}

// Namespaces returns the namespaces that have objects.
func (s Stored) Namespaces(ctx context.Context) (sets.Set[string], error) {
	// Version 0 is what the watch cache has.
	objects, err := s.ListWithContext(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, err
	}
	namespaces := sets.Set[string]{}
	err = meta.EachListItem(objects, func(obj runtime.Object) error {
		if object, ok := obj.(metav1.Object); ok {
			namespaces.Insert(object.GetNamespace())
		}
		return nil
	})
	return namespaces.Delete(metav1.NamespaceNone), err
}

// WatchWithContext returns the changes to objects of all namespaces. It does not time out. The objects share memory as
// listed ones do.
func (s Stored) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	internal, err := internalOptions(options)
	if err != nil {
		return nil, err
	}
	changes, err := s.storage.Watch(ctx, internal)
	if err != nil {
		return nil, err
	}
	return watch.Filter(changes, func(event watch.Event) (watch.Event, bool) {
		event.Object = s.shared(ctx, event)
		return event, true
	}), nil
}

// shared returns the object of an event as the watch cache has it, and not the copy for a client, which would double the memory of
// each object that was changed. An object that has been changed or deleted since is a copy.
func (s Stored) shared(ctx context.Context, event watch.Event) runtime.Object {
	if object, ok := event.Object.(metav1.Object); ok && (event.Type == watch.Added || event.Type == watch.Modified) {
		version := object.GetResourceVersion()
		ctx = request.WithNamespace(ctx, object.GetNamespace())
		cached, err := s.storage.Get(ctx, object.GetName(), &metav1.GetOptions{ResourceVersion: "0"})
		if current, ok := cached.(metav1.Object); err == nil && ok && current.GetResourceVersion() == version {
			return cached
		}
	}
	// An object that is encoded once for many watches.
	if encoded, ok := event.Object.(runtime.CacheableObject); ok {
		return encoded.GetObject()
	}
	return event.Object
}

// IsWatchListSemanticsUnSupported makes reflectors list instead of streaming the list: listed objects are not copied.
func (s Stored) IsWatchListSemanticsUnSupported() bool { return true }

func internalOptions(options metav1.ListOptions) (*metainternalversion.ListOptions, error) {
	internal := &metainternalversion.ListOptions{}
	if err := metainternalversion.Convert_v1_ListOptions_To_internalversion_ListOptions(&options, internal, nil); err != nil {
		return nil, err
	}
	return internal, nil
}
