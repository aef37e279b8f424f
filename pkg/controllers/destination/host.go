package destination

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

const (
	// patience is how long objects wait for the first list of a kind. Beyond it they are unresolved until it comes.
	patience = 2 * time.Second
	// rediscovery is how often kinds that the host does not serve are looked for again: it does not tell of them.
	rediscovery = 30 * time.Second
)

// Host is the cluster that this server extends.
type Host struct {
	Client dynamic.Interface
	// Mapper knows the kinds of the cluster. If it is a meta.ResettableRESTMapper, it is reset now and then while an
	// object refers to a kind that it does not know.
	Mapper meta.RESTMapper
	// Clock tells when to reset it.
	Clock clock.PassiveClock
}

// hostKinds watches the kinds of the host that something refers to.
type hostKinds struct {
	Host
	// ctx is when the informers end, whichever object's reconciliation starts them.
	ctx context.Context

	// mu guards what follows.
	mu       sync.Mutex
	trackers []*Tracker
	watched  map[schema.GroupVersionResource]*hostKind
	reset    time.Time
}

func newHostKinds(ctx context.Context, host Host) *hostKinds {
	return &hostKinds{Host: host, ctx: ctx, watched: map[schema.GroupVersionResource]*hostKind{}, reset: host.Clock.Now()}
}

func (h *hostKinds) subscribe(t *Tracker) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.trackers = append(h.trackers, t)
}

// HostObject returns an object of the host cluster, and has the referrer reconciled when anything of it changes. It
// fails with *Unresolved as Resolve does. The object may not be changed.
func (refs *References) HostObject(ctx context.Context, ref *duckv1.KReference) (*unstructured.Unstructured, error) {
	ref = refs.qualified(ref)
	if refs.tracker.resolver.host == nil {
		return nil, unresolved(ReasonNotFound, "%s cannot be read: this server runs without a cluster", describe(ref))
	}
	return refs.hostObject(ctx, ref)
}

func (refs *References) hostObject(ctx context.Context, ref *duckv1.KReference) (*unstructured.Unstructured, error) {
	h := refs.tracker.resolver.host
	kind := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
	mapping, err := h.mapping(kind)
	if meta.IsNoMatchError(err) {
		refs.tracker.queue.EnqueueAfter(refs.referrer, rediscovery)
		return nil, unresolved(ReasonNotFound, "%s does not exist: the cluster serves no such kind", describe(ref))
	}
	if err != nil {
		refs.tracker.queue.EnqueueAfter(refs.referrer, rediscovery)
		return nil, unresolved(ReasonUnavailable, "%s cannot be read: asking the cluster for its kinds: %v", describe(ref), err)
	}
	name := types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		name.Namespace = ""
	}
	refs.add(object{kind: kind.GroupKind(), name: name})
	watched, err := h.watch(mapping)
	if err != nil {
		return nil, err
	}
	return watched.get(ctx, ref, name)
}

// mapping finds the resource of a kind.
func (h *hostKinds) mapping(kind schema.GroupVersionKind) (*meta.RESTMapping, error) {
	mapping, err := h.Mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if !meta.IsNoMatchError(err) || !h.resetDue() {
		return mapping, err
	}
	meta.MaybeResetRESTMapper(h.Mapper)
	return h.Mapper.RESTMapping(kind.GroupKind(), kind.Version)
}

// resetDue tells whether to ask the host for all its kinds again, which costs it much.
func (h *hostKinds) resetDue() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.Clock.Now()
	if now.Sub(h.reset) < rediscovery/2 {
		return false
	}
	h.reset = now
	return true
}

// watch returns the watch of a kind, which is started where there is none.
func (h *hostKinds) watch(mapping *meta.RESTMapping) (*hostKind, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if k, ok := h.watched[mapping.Resource]; ok {
		return k, nil
	}
	k := &hostKind{
		informer: dynamicinformer.NewFilteredDynamicInformer(h.Client, mapping.Resource, metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer(),
		settled:  make(chan struct{}),
	}
	if err := k.informer.SetTransform(withoutManagedFields); err != nil {
		return nil, err
	}
	if err := k.informer.SetWatchErrorHandlerWithContext(k.failed); err != nil {
		return nil, err
	}
	kind := mapping.GroupVersionKind.GroupKind()
	changed := func(obj any) {
		if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = tombstone.Obj
		}
		if obj, ok := obj.(metav1.Object); ok {
			h.notify(func(t *Tracker) {
				t.changed(object{kind: kind, name: types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()}})
			})
		}
	}
	if _, err := k.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: changed, UpdateFunc: func(_, current any) { changed(current) }, DeleteFunc: changed,
	}); err != nil {
		return nil, err
	}
	h.watched[mapping.Resource] = k
	go k.informer.RunWithContext(h.ctx)
	go func() {
		// The informer's own list, not the handler's: that is complete before anything is read from it.
		if cache.WaitForCacheSync(h.ctx.Done(), k.informer.HasSynced) {
			k.settle()
			h.notify(func(t *Tracker) { t.kindChanged(kind) })
		}
	}()
	time.AfterFunc(patience, k.settle)
	return k, nil
}

func (h *hostKinds) notify(tell func(t *Tracker)) {
	h.mu.Lock()
	trackers := h.trackers
	h.mu.Unlock()
	for _, t := range trackers {
		tell(t)
	}
}

// hostKind is a watched kind of the host cluster.
type hostKind struct {
	informer cache.SharedIndexInformer
	// settled is closed once the kind was listed, or could not be for some time.
	settled chan struct{}
	once    sync.Once

	// mu guards err: why the latest list or watch failed.
	mu  sync.Mutex
	err error
}

func (k *hostKind) settle() { k.once.Do(func() { close(k.settled) }) }

// failed notes why the kind cannot be listed or watched. It is tried again, with growing delay.
func (k *hostKind) failed(ctx context.Context, reflector *cache.Reflector, err error) {
	if errors.Is(err, io.EOF) || apierrors.IsResourceExpired(err) {
		// Watches end like this every few minutes.
		return
	}
	klog.FromContext(ctx).Info("Watching a kind of the cluster failed", "kind", reflector.TypeDescription(), "err", err)
	k.mu.Lock()
	k.err = err
	k.mu.Unlock()
	k.settle()
}

func (k *hostKind) get(ctx context.Context, ref *duckv1.KReference, name types.NamespacedName) (*unstructured.Unstructured, error) {
	select {
	case <-k.settled:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if !k.informer.HasSynced() {
		return nil, k.fault(ref)
	}
	key := name.Name
	if name.Namespace != "" {
		key = name.String()
	}
	found, ok, err := k.informer.GetIndexer().GetByKey(key)
	if err != nil {
		return nil, err
	}
	if obj, is := found.(*unstructured.Unstructured); ok && is {
		return obj, nil
	}
	return nil, unresolved(ReasonNotFound, "%s does not exist", describe(ref))
}

// fault says why nothing is known of the kind.
func (k *hostKind) fault(ref *duckv1.KReference) *Unresolved {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.err == nil:
		return unresolved(ReasonUnavailable, "%s cannot be read: the cluster has not answered yet", describe(ref))
	case apierrors.IsForbidden(k.err):
		return unresolved(ReasonForbidden, "%s cannot be read: the controllers may not list and watch its kind in the cluster; "+
			"a ClusterRole labelled duck.knative.dev/addressable: \"true\" grants that: %v", describe(ref), k.err)
	default:
		return unresolved(ReasonUnavailable, "%s cannot be read: %v", describe(ref), k.err)
	}
}

func withoutManagedFields(obj any) (any, error) {
	if object, ok := obj.(metav1.Object); ok {
		object.SetManagedFields(nil)
	}
	return obj, nil
}
