package destination

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

const (
	// patience bounds the wait for the first list of a kind. After that, references to the kind are unresolved until the list arrives.
	patience = 2 * time.Second
	// rediscovery is the interval of lookups of kinds that the host does not serve. The host does not report new kinds.
	rediscovery = 30 * time.Second
	// unused is the time that a kind is watched after the last reference to it was removed.
	unused = time.Minute
	// maxKinds bounds the kinds that are watched at a time.
	maxKinds = 64
)

// Host is the cluster that this server extends.
type Host struct {
	Client dynamic.Interface
	// Mapper knows the kinds of the cluster. If it is a meta.ResettableRESTMapper, it is reset repeatedly while an
	// object refers to a kind that it does not know.
	Mapper meta.RESTMapper
	// Kinds distinguishes kinds that the cluster does not serve from kinds of an unavailable server. If it is nil, the cluster
	// is assumed to serve no kind but the kinds that Mapper knows.
	Kinds discovery.ServerResourcesInterface
	// Discovery sends the requests of Lookup. If it is nil, the cluster is assumed to serve no other kinds than Mapper knows.
	Discovery rest.Interface
	// Access reviews the rights of this server before it watches a kind; nil watches without a review.
	Access authorizationclient.SelfSubjectAccessReviewInterface
	// Clock is the clock of the resets of Mapper.
	Clock clock.PassiveClock
}

// hostKinds watches the kinds of the host that objects refer to. Of Kubernetes' own kinds it watches core Services only. This
// server needs permissions for all other kinds; aggregated roles grant them for addressable and channelable kinds.
type hostKinds struct {
	Host
	// Canceling ctx ends all watches, regardless of the reconciliation that started them.
	ctx context.Context

	// mu guards the fields below. A Tracker's mu may be locked while it is held, not vice versa.
	mu       sync.Mutex
	trackers []*Tracker
	watched  map[schema.GroupVersionResource]*hostKind
	// full is true while a kind could not be watched because too many are.
	full  bool
	reset time.Time
}

func newHostKinds(ctx context.Context, host Host) *hostKinds {
	return &hostKinds{Host: host, ctx: ctx, watched: map[schema.GroupVersionResource]*hostKind{}, reset: host.Clock.Now()}
}

func (h *hostKinds) subscribe(t *Tracker) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.trackers = append(h.trackers, t)
}

// builtIn reports whether a kind is one of Kubernetes' own. Only core Services can receive events, and some of the other kinds
// have very many objects.
func builtIn(kind schema.GroupVersionKind) bool {
	return !strings.Contains(kind.Group, ".") || strings.HasSuffix(kind.Group, ".k8s.io")
}

// get returns an object of the host cluster, and records the reference. It fails with *Unresolved if it cannot be read.
func (h *hostKinds) get(ctx context.Context, ref *duckv1.KReference, refs *References) (*unstructured.Unstructured, error) {
	kind := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
	if builtIn(kind) && !isCoreService(ref) {
		return nil, unresolved(ReasonNotAddressable, "%s has no address: of Kubernetes' own kinds, only Services can be referred to", describe(ref))
	}
	mapping, err := h.mapping(kind)
	if meta.IsNoMatchError(err) {
		refs.retry()
		return nil, unresolved(ReasonNotFound, "%s does not exist: the cluster serves no such kind", describe(ref))
	}
	if err != nil {
		refs.retry()
		return nil, unresolved(ReasonUnavailable, "%s cannot be read: asking the cluster for its kinds: %v", describe(ref), err)
	}
	name := types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		name.Namespace = ""
	}
	refs.add(object{kind: kind.GroupKind(), name: name})
	watched, err := h.watch(mapping) //nolint:contextcheck // the watch outlives the reconciliation that starts it
	if err != nil {
		return nil, err
	}
	if watched == nil {
		refs.retry()
		return nil, unresolved(ReasonTooManyKinds, "%s cannot be read: this server watches %d kinds of the cluster already, and no more than that", describe(ref), maxKinds)
	}
	return watched.get(ctx, ref, name)
}

// mapping finds the resource of a kind. It fails with a no-match error only if the host does not serve the kind.
func (h *hostKinds) mapping(kind schema.GroupVersionKind) (*meta.RESTMapping, error) {
	mapping, err := h.Mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if meta.IsNoMatchError(err) && h.resetDue() {
		meta.MaybeResetRESTMapper(h.Mapper)
		mapping, err = h.Mapper.RESTMapping(kind.GroupKind(), kind.Version)
	}
	if meta.IsNoMatchError(err) && h.Kinds != nil {
		// Mappers leave out the groups whose server did not answer.
		if _, failed := h.Kinds.ServerResourcesForGroupVersion(kind.GroupVersion().String()); failed != nil && !apierrors.IsNotFound(failed) && !errors.Is(failed, memory.ErrCacheNotFound) {
			return nil, failed
		}
	}
	return mapping, err
}

// resetDue reports whether to request all kinds from the host again, which is expensive for it.
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

// watch returns the watch of a kind, and starts it if necessary; nil means that too many kinds are watched.
func (h *hostKinds) watch(mapping *meta.RESTMapping) (*hostKind, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if k, ok := h.watched[mapping.Resource]; ok {
		return k, nil
	}
	kind := mapping.GroupVersionKind.GroupKind()
	if len(h.watched) >= maxKinds && !h.stop(func(k *hostKind) bool { return !h.referred(k.kind) }) {
		if !h.full {
			klog.FromContext(h.ctx).Info("Not watching another kind of the cluster: objects refer to too many", "kind", kind.String(), "max", maxKinds)
		}
		h.full = true
		return nil, nil
	}
	k, err := h.newKind(mapping)
	if err != nil {
		return nil, err
	}
	h.full = false
	h.watched[mapping.Resource] = k
	var ctx context.Context
	ctx, k.cancel = context.WithCancel(h.ctx)
	go func() {
		if k.allowed(ctx, h.Access, mapping.Resource) {
			k.informer.RunWithContext(ctx)
		}
	}()
	go func() {
		// This waits for the informer's list, not for the handler: reads need the complete list only.
		if cache.WaitForCacheSync(ctx.Done(), k.informer.HasSynced) {
			k.settle()
			h.notify(func(t *Tracker) { t.kindChanged(kind) })
		}
	}()
	time.AfterFunc(patience, k.settle)
	return k, nil
}

func (h *hostKinds) newKind(mapping *meta.RESTMapping) (*hostKind, error) {
	kind := mapping.GroupVersionKind.GroupKind()
	k := &hostKind{
		kind:     kind,
		informer: dynamicinformer.NewFilteredDynamicInformer(h.Client, mapping.Resource, metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer(),
		settled:  make(chan struct{}),
	}
	if err := k.informer.SetTransform(trimmed); err != nil {
		return nil, err
	}
	if err := k.informer.SetWatchErrorHandlerWithContext(k.failed); err != nil {
		return nil, err
	}
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
	_, err := k.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: changed, UpdateFunc: func(_, current any) { changed(current) }, DeleteFunc: changed,
	})
	return k, err
}

// unreferred stops watching a kind after a delay, unless an object refers to it by then.
func (h *hostKinds) unreferred(kind schema.GroupKind) {
	time.AfterFunc(unused, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.stop(func(k *hostKind) bool { return k.kind == kind && !h.referred(kind) })
	})
}

// referred reports whether anything refers to a kind. mu is held.
func (h *hostKinds) referred(kind schema.GroupKind) bool {
	return slices.ContainsFunc(h.trackers, func(t *Tracker) bool { return t.refersTo(kind) })
}

// stop stops watching some kinds, and reports whether any were watched. mu is held.
func (h *hostKinds) stop(which func(k *hostKind) bool) (any bool) {
	for resource, k := range h.watched {
		if which(k) {
			k.cancel()
			delete(h.watched, resource)
			any = true
		}
	}
	return any
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
	kind     schema.GroupKind
	cancel   context.CancelFunc
	informer cache.SharedIndexInformer
	// settled is closed once the kind was listed, or could not be listed for some time.
	settled chan struct{}
	once    sync.Once

	// mu guards err, the error of the latest list or watch.
	mu  sync.Mutex
	err error
}

func (k *hostKind) settle() { k.once.Do(func() { close(k.settled) }) }

// allowed returns once this server may list and watch the kind; false means that ctx was canceled before.
func (k *hostKind) allowed(ctx context.Context, access authorizationclient.SelfSubjectAccessReviewInterface, resource schema.GroupVersionResource) bool {
	if access == nil {
		return true
	}
	backoff := wait.Backoff{Duration: time.Second, Factor: 2, Steps: 10, Cap: rediscovery}
	for {
		err := review(ctx, access, resource)
		if err == nil {
			return true
		}
		k.fail(ctx, err)
		select {
		case <-time.After(backoff.Step()):
		case <-ctx.Done():
			return false
		}
	}
}

// review returns nil if this server may list and watch a resource in all namespaces.
func review(ctx context.Context, access authorizationclient.SelfSubjectAccessReviewInterface, resource schema.GroupVersionResource) error {
	for _, verb := range []string{"list", "watch"} {
		answer, err := access.Create(ctx, &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Group: resource.Group, Version: resource.Version, Resource: resource.Resource, Verb: verb},
		}}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("review access to %s: %w", resource.GroupResource(), err)
		}
		if !answer.Status.Allowed {
			return apierrors.NewForbidden(resource.GroupResource(), "",
				fmt.Errorf("this server cannot %s resource %q in API group %q at the cluster scope", verb, resource.Resource, resource.Group))
		}
	}
	return nil
}

// failed implements cache.WatchErrorHandlerWithContext. The informer retries with increasing delay.
func (k *hostKind) failed(ctx context.Context, _ *cache.Reflector, err error) {
	if errors.Is(err, io.EOF) || apierrors.IsResourceExpired(err) {
		// Watches regularly end with this error.
		return
	}
	k.fail(ctx, err)
}

// fail records why the kind cannot be listed or watched, and logs each cause once.
func (k *hostKind) fail(ctx context.Context, err error) {
	k.mu.Lock()
	known := k.err != nil && k.err.Error() == err.Error()
	k.err = err
	k.mu.Unlock()
	if !known {
		klog.FromContext(ctx).Info("Failed to watch a kind of the cluster; retrying", "kind", k.kind.String(), "err", err)
	}
	k.settle()
}

func (k *hostKind) get(ctx context.Context, ref *duckv1.KReference, name types.NamespacedName) (*unstructured.Unstructured, error) {
	select {
	case <-k.settled:
	case <-ctx.Done():
		return nil, unresolved(ReasonUnavailable, "%s cannot be read: %v", describe(ref), ctx.Err())
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

// fault returns the reason why the kind cannot be read.
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

// kept lists the fields that are read of addressable objects, senders of events, channels and core Services.
var kept = map[string][]string{
	"metadata": {"name", "namespace", "uid", "resourceVersion", "generation", "deletionTimestamp", "ownerReferences"},
	"spec":     {"subscribers", "delivery", "type", "externalName"},
	"status": {"address", "addresses", "conditions", "observedGeneration", "subscribers",
		"deadLetterSinkUri", "deadLetterSinkCACerts", "deadLetterSinkAudience", "auth"},
}

// trimmed returns an object with the fields in kept only.
func trimmed(obj any) (any, error) {
	whole, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return obj, nil
	}
	part := map[string]any{"apiVersion": whole.GetAPIVersion(), "kind": whole.GetKind()}
	for section, fields := range kept {
		value, found := whole.Object[section]
		if !found {
			continue
		}
		from, is := value.(map[string]any)
		if !is {
			part[section] = value
			continue
		}
		to := map[string]any{}
		for _, field := range fields {
			if value, found := from[field]; found {
				to[field] = value
			}
		}
		part[section] = to
	}
	small := &unstructured.Unstructured{Object: part}
	if granted := annotation(whole); granted != "" {
		small.SetAnnotations(map[string]string{AllowFromAnnotationKey: granted})
	}
	return small, nil
}
