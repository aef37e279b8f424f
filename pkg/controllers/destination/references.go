package destination

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
)

// References are the objects that one object refers to, collected while it is reconciled. Not safe for concurrent use.
type References struct {
	tracker  *Tracker
	referrer types.NamespacedName
	seen     sets.Set[object]
	grants   grants
}

// Denied reports whether any of the objects referenced so far exists in another namespace and does not grant the reference. Its
// former address must not get events then, unlike the address of a missing object.
func (refs *References) Denied() bool { return refs.grants.denied }

// End drops the references that the object no longer has. If an error prevents the call, the object is enqueued for more changes than
// necessary.
func (refs *References) End() {
	dropped := refs.tracker.retain(refs.referrer, refs.seen)
	if host := refs.tracker.resolver.host; host != nil {
		for kind := range dropped {
			host.unreferred(kind)
		}
	}
}

// Resolve returns the absolute http or https URL of a destination, with its certificates and audience. It fails with *Unresolved if the
// destination has no address, and with another error if that could not be determined.
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
		// The path may name another object, and a Service may be an alias of another name.
		if err := checkURL(ctx, refs, base); err != nil {
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
	if err := checkURL(ctx, refs, u); err != nil {
		return duckv1.Addressable{}, err
	}
	return duckv1.Addressable{URL: d.URI, CACerts: d.CACerts, Audience: d.Audience}, nil
}

// address returns the address of an object; secure is true if certificates for it are given. References of these methods
// are qualified.
func (refs *References) address(ctx context.Context, ref *duckv1.KReference, secure bool) (duckv1.Addressable, error) {
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
		found = state{address: &duckv1.Addressable{URL: fmt.Sprintf("%s://%s.%s.svc.%s", scheme, ref.Name, ref.Namespace, refs.tracker.resolver.names.clusterDomain)}}
	}
	return found.pick(ref)
}

// get returns the state of an object, and enqueues the referrer when it changes.
func (refs *References) get(ctx context.Context, ref *duckv1.KReference) (state, error) {
	r := refs.tracker.resolver
	name := types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
	kind := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
	if own, ok := r.own[kind]; ok {
		// The reference is recorded before the read, so that no change in between is missed.
		refs.add(object{kind: kind.GroupKind(), name: name})
		found, err := own.get(ref, name)
		if denied := refs.grants.check(ref, found.granted, err == nil); denied != nil {
			return state{}, denied
		}
		return found, err
	}
	if r.host == nil {
		if denied := refs.grants.check(ref, "", false); denied != nil {
			return state{}, denied
		}
		if isCoreService(ref) {
			// Whether the object exists cannot be determined, but its address is known.
			return state{}, nil
		}
		return state{}, unresolved(ReasonNotFound,
			"%s cannot be read: this server runs without a cluster, where only Services, Routes, Brokers and Channels of Knative can be referred to", describe(ref))
	}
	obj, err := r.host.get(ctx, ref, refs)
	fault, missing := AsUnresolved(err)
	if err != nil && (!missing || fault.Reason != ReasonNotFound) {
		// Neither the object nor its annotation is known.
		return state{}, err
	}
	if denied := refs.grants.check(ref, annotation(obj), !missing); denied != nil {
		return state{}, denied
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

// Ready returns the Ready condition of an object's current generation, or nil if it has none. It fails with *Unresolved if the object does not exist.
func (refs *References) Ready(ctx context.Context, ref *duckv1.KReference) (*duckv1.Condition, error) {
	found, err := refs.get(ctx, refs.qualified(ref))
	return found.ready, err
}

// HostObject returns an object of the host cluster. The referrer is reconciled when anything of the object changes. HostObject
// fails with *Unresolved as Resolve does. The object may not be changed.
func (refs *References) HostObject(ctx context.Context, ref *duckv1.KReference) (*unstructured.Unstructured, error) {
	ref = refs.qualified(ref)
	if refs.tracker.resolver.host == nil {
		return nil, unresolved(ReasonNotFound, "%s cannot be read: this server runs without a cluster", describe(ref))
	}
	return refs.tracker.resolver.host.get(ctx, ref, refs)
}

// ConditionDeadLetterSinkResolved reports whether the dead letter sink of a Broker, Trigger or Channel has an address.
const ConditionDeadLetterSinkResolved duckv1.ConditionType = "DeadLetterSinkResolved"

// ReasonDeadLetterSinkNotConfigured is the reason of ConditionDeadLetterSinkResolved without a dead letter sink.
const ReasonDeadLetterSinkNotConfigured = "DeadLetterSinkNotConfigured"

// DeadLetterSink resolves the dead letter sink of delivery options, which may be nil. It returns its part of the status and its
// condition; an error means that neither could be determined.
func (refs *References) DeadLetterSink(ctx context.Context, delivery *duckv1.DeliverySpec) (duckv1.DeliveryStatus, duckv1.Condition, error) {
	resolved := reconciler.True(ConditionDeadLetterSinkResolved)
	if delivery == nil || delivery.DeadLetterSink == nil {
		resolved.Reason, resolved.Message = ReasonDeadLetterSinkNotConfigured, "No dead letter sink is configured."
		return duckv1.DeliveryStatus{}, resolved, nil
	}
	address, err := refs.Resolve(ctx, delivery.DeadLetterSink)
	if fault, ok := AsUnresolved(err); ok {
		return duckv1.DeliveryStatus{}, fault.Condition(ConditionDeadLetterSinkResolved, "DeadLetterSink"), nil
	}
	if err != nil {
		return duckv1.DeliveryStatus{}, duckv1.Condition{}, err
	}
	return duckv1.DeliveryStatus{
		DeadLetterSinkURI:      address.URL,
		DeadLetterSinkCACerts:  address.CACerts,
		DeadLetterSinkAudience: address.Audience,
	}, resolved, nil
}

// add enqueues the referrer whenever the object changes from now on.
func (refs *References) add(o object) {
	refs.seen.Insert(o)
	refs.tracker.add(o, refs.referrer)
}

// retry enqueues the referrer after a delay, because the host reports no change.
func (refs *References) retry() { refs.tracker.queue.EnqueueAfter(refs.referrer, rediscovery) }

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

// join concatenates the certificates of both.
func join(a, b *string) *string {
	switch {
	case ptr.Deref(a, "") == "":
		return b
	case ptr.Deref(b, "") == "":
		return a
	}
	return ptr.To(strings.TrimSuffix(*a, "\n") + "\n" + *b)
}

func isCoreService(ref *duckv1.KReference) bool {
	return ref.APIVersion == "v1" && ref.Kind == "Service"
}

// Senders returns the names of the ServiceAccounts in status.auth of an object, with which it sends events. The referrer is reconciled when
// they change. A reference to another namespace needs no grant: it gives the object nothing but the permission to send. Senders fails
// with *Unresolved as Resolve does, and if the object has no ServiceAccount.
func (refs *References) Senders(ctx context.Context, ref *duckv1.KReference) ([]string, error) {
	ref = refs.qualified(ref)
	obj, err := refs.object(ctx, ref)
	if err != nil {
		return nil, err
	}
	auth, _, err := unstructured.NestedMap(obj, "status", "auth")
	if err != nil {
		return nil, unresolved(ReasonInvalid, "%s has a status.auth that is no object", describe(ref))
	}
	var names []string
	if name, _, err := unstructured.NestedString(auth, "serviceAccountName"); err == nil && name != "" {
		names = append(names, name)
	}
	if more, _, err := unstructured.NestedStringSlice(auth, "serviceAccountNames"); err == nil {
		names = append(names, more...)
	}
	if len(names) == 0 {
		return nil, unresolved(ReasonNotFound, "%s has no ServiceAccount in status.auth", describe(ref))
	}
	return names, nil
}

// object returns the content of an object, and enqueues the referrer when it changes.
func (refs *References) object(ctx context.Context, ref *duckv1.KReference) (map[string]any, error) {
	r := refs.tracker.resolver
	kind := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
	own, ok := r.own[kind]
	if !ok {
		found, err := refs.HostObject(ctx, ref)
		if err != nil {
			return nil, err
		}
		return found.Object, nil
	}
	name := types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
	refs.add(object{kind: kind.GroupKind(), name: name})
	obj, found, err := own.informer.GetIndexer().GetByKey(name.String())
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, unresolved(ReasonNotFound, "%s does not exist", describe(ref))
	}
	return runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
}
