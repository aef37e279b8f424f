// Package destination resolves the references of Triggers, Subscriptions, Brokers and Channels into URLs, and enqueues the
// referrers when a referenced object changes (eventing Destination Resolution).
package destination

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/informers/externalversions"
)

// Options are what a Resolver reads.
type Options struct {
	// Informers have the kinds of this server.
	Informers externalversions.SharedInformerFactory
	// Host is the cluster that has all other kinds; nil where this server runs without one.
	Host *Host
	// ClusterDomain is the DNS domain of the cluster, such as cluster.local.
	ClusterDomain string
	// AllowCrossNamespace lets objects refer to objects of other namespaces, and name their Services in URLs, without a
	// grant.
	AllowCrossNamespace bool
	// Network names the Services of this server in the host cluster.
	Network Network
}

// Resolver finds the addresses of destinations. It is safe for concurrent use.
type Resolver struct {
	own                 map[schema.GroupVersionKind]ownKind
	host                *hostKinds
	clusterDomain       string
	allowCrossNamespace bool
	network             Network
}

// New returns a Resolver. Call it before the informers start; the informers of the host's kinds, which it starts as
// they are referred to, end with ctx.
func New(ctx context.Context, o Options) *Resolver {
	r := &Resolver{own: ownKinds(o.Informers), clusterDomain: o.ClusterDomain, allowCrossNamespace: o.AllowCrossNamespace, network: o.Network}
	if o.Host != nil {
		r.host = newHostKinds(ctx, *o.Host)
	}
	return r
}

// Controller is the part of a reconciler.Controller that a Tracker needs.
type Controller interface {
	Watch(informer cache.SharedIndexInformer, keys func(obj metav1.Object) []types.NamespacedName) error
	Queue
}

// Track has a controller reconcile the objects whose References are affected by a change. Call it once for each
// controller, before that runs and the informers start.
func (r *Resolver) Track(controller Controller) (*Tracker, error) {
	t := newTracker(r, controller)
	for kind, own := range r.own {
		err := controller.Watch(own.informer, func(obj metav1.Object) []types.NamespacedName {
			return t.referring(object{kind: kind.GroupKind(), name: types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()}})
		})
		if err != nil {
			return nil, err
		}
	}
	if r.host != nil {
		r.host.subscribe(t)
	}
	return t, nil
}

// Resolve returns the absolute http or https URL of a destination, with the certificates and the audience that go
// with it. It fails with *Unresolved if the destination has none, and with another error if that could not be found out.
func (refs *References) Resolve(ctx context.Context, d *duckv1.Destination) (duckv1.Addressable, error) {
	if d.Ref == nil {
		return refs.absolute(ctx, d)
	}
	ref := refs.qualified(d.Ref)
	found, err := refs.address(ctx, ref, ptr.Deref(d.CACerts, "") != "")
	if err != nil {
		return duckv1.Addressable{}, err
	}
	base, err := parse(found.URL)
	if err != nil {
		return duckv1.Addressable{}, unresolved(ReasonNotAddressable, "%s has the address %q: %v", describe(ref), found.URL, err)
	}
	resolved := duckv1.Addressable{Name: found.Name, URL: found.URL, CACerts: join(found.CACerts, d.CACerts), Audience: found.Audience}
	if ptr.Deref(resolved.Audience, "") == "" {
		resolved.Audience = d.Audience
	}
	if d.URI != "" {
		relative, err := url.Parse(d.URI)
		if err != nil {
			return duckv1.Addressable{}, unresolved(ReasonInvalid, "uri is no URL: %v", err)
		}
		base = base.ResolveReference(relative)
		resolved.URL = base.String()
	}
	if d.URI != "" || isCoreService(ref) {
		// The path may name what the object does not, and a Service may stand for another name.
		if err := refs.checkURL(ctx, base); err != nil {
			return duckv1.Addressable{}, err
		}
	}
	return resolved, nil
}

// absolute returns the address of a destination without a reference.
func (refs *References) absolute(ctx context.Context, d *duckv1.Destination) (duckv1.Addressable, error) {
	u, err := parse(d.URI)
	if err != nil {
		return duckv1.Addressable{}, unresolved(ReasonInvalid, "uri is %q: %v", d.URI, err)
	}
	if err := refs.checkURL(ctx, u); err != nil {
		return duckv1.Addressable{}, err
	}
	return duckv1.Addressable{URL: d.URI, CACerts: d.CACerts, Audience: d.Audience}, nil
}

// parse parses a URL that events can be sent to.
func parse(address string) (*url.URL, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, errors.Unwrap(err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return nil, errors.New("not an absolute http or https URL")
	}
	return u, nil
}

// join is the certificates of both.
func join(a, b *string) *string {
	switch {
	case ptr.Deref(a, "") == "":
		return b
	case ptr.Deref(b, "") == "":
		return a
	}
	return ptr.To(strings.TrimSuffix(*a, "\n") + "\n" + *b)
}

// address returns the address of an object; secure is true if certificates for it are given. References of these methods
// are qualified.
func (refs *References) address(ctx context.Context, ref *duckv1.KReference, secure bool) (duckv1.Addressable, error) {
	r := refs.tracker.resolver
	found, err := refs.get(ctx, ref)
	if err != nil {
		return duckv1.Addressable{}, err
	}
	if isCoreService(ref) {
		// A core Service has no status.address: it is reached by its DNS name.
		scheme := "http"
		if secure {
			scheme = "https"
		}
		found = state{address: &duckv1.Addressable{URL: fmt.Sprintf("%s://%s.%s.svc.%s", scheme, ref.Name, ref.Namespace, r.clusterDomain)}}
	}
	return found.pick(ref)
}

// get returns the state of an object, and enqueues the referrer when it changes.
func (refs *References) get(ctx context.Context, ref *duckv1.KReference) (state, error) {
	r := refs.tracker.resolver
	name := types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
	kind := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
	foreign := name.Namespace != refs.referrer.Namespace && !r.allowCrossNamespace
	if own, ok := r.own[kind]; ok {
		// Recorded before it is read: a change in between is not missed.
		refs.add(object{kind: kind.GroupKind(), name: name})
		found, err := own.get(ref, name)
		if foreign && !refs.granted(found.granted, err == nil) {
			return state{}, refs.notGranted(ref)
		}
		return found, err
	}
	if r.host == nil {
		if foreign {
			return state{}, refs.notGranted(ref)
		}
		if isCoreService(ref) {
			// Whether the object exists cannot be determined, but its address is known.
			return state{}, nil
		}
		return state{}, unresolved(ReasonNotFound,
			"%s cannot be read: this server runs without a cluster, where only Services, Routes, Brokers and Channels of Knative can be referred to", describe(ref))
	}
	obj, err := refs.hostObject(ctx, ref)
	fault, missing := AsUnresolved(err)
	if err != nil && (!missing || fault.Reason != ReasonNotFound) {
		// Neither the object nor its annotation is known.
		return state{}, err
	}
	if foreign && !refs.granted(annotation(obj), !missing) {
		return state{}, refs.notGranted(ref)
	}
	if missing {
		return state{}, err
	}
	return stateOf(ref, obj)
}

// qualified is a reference that names its namespace.
func (refs *References) qualified(ref *duckv1.KReference) *duckv1.KReference {
	named := *ref
	named.SetNamespace(refs.referrer.Namespace)
	return &named
}

func isCoreService(ref *duckv1.KReference) bool {
	return ref.APIVersion == "v1" && ref.Kind == "Service"
}
