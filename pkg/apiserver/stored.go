package apiserver

import (
	"context"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/tools/cache"

	"github.com/knative-apiserver/knative-apiserver/pkg/registry"
)

// Stored lists and watches the objects of one resource of this server without requests, from the same watch cache: nothing is encoded
// and decoded. It is for informers in this process, which see all objects.
type Stored struct{ storage rest.StandardStorage }

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

// ListWithContext returns the objects of all namespaces. They share memory with the watch cache: only their own fields may be changed,
// nothing that these point to.
func (s Stored) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	internal, err := internalOptions(options)
	if err != nil {
		return nil, err
	}
	return s.storage.List(ctx, internal)
}

// WatchWithContext returns the changes to objects of all namespaces. It does not time out.
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
		// An object that is encoded once for many watches.
		if encoded, ok := event.Object.(runtime.CacheableObject); ok {
			event.Object = encoded.GetObject()
		}
		return event, true
	}), nil
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
