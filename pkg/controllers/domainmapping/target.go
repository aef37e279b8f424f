package domainmapping

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	servingv1beta1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1beta1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/hostnames"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/hosttls"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// ReasonResolveFailed means that spec.ref, or the reference of a path, names nothing that can be mapped.
const ReasonResolveFailed = "ResolveFailed"

// retryPeriod is the time until the next lookup of a core Service that belongs to no Route.
const retryPeriod = 10 * time.Second

// target is the resolved reference of a DomainMapping, or of one of its paths.
type target struct {
	// alias is the host of a Route that gets the requests; nil without one.
	alias *routing.Alias
	// served is true if the gateways of all replicas serve that Route.
	served bool
	// fault is the message of a reference that cannot be resolved.
	fault string
	// retry is true if the reference must be resolved again, because its changes are not watched.
	retry bool
}

func unresolvable(format string, args ...any) target {
	return target{fault: fmt.Sprintf(format, args...)}
}

// resolve sets the targets of a DomainMapping and ReferenceResolved. References are independent: one that cannot be resolved does not
// affect requests for the others.
func (r *Reconciler) resolve(mapping *servingv1beta1.DomainMapping, found *findings) error {
	var faults []string
	all := func(resolved target) {
		found.retry = found.retry || resolved.retry
		found.unserved = found.unserved || resolved.alias != nil && !resolved.served
	}
	of, err := r.target(mapping, mapping.Spec.Ref)
	if err != nil {
		return err
	}
	if found.target = of.alias; of.fault != "" {
		faults = append(faults, of.fault)
	}
	all(of)
	for i := range mapping.Spec.Paths {
		path := &mapping.Spec.Paths[i]
		of, err := r.target(mapping, path.Ref)
		if err != nil {
			return err
		}
		found.paths = append(found.paths, routing.Path{Prefix: path.Prefix, Alias: of.alias})
		if of.fault != "" {
			faults = append(faults, fmt.Sprintf("path %q: %s", path.Prefix, of.fault))
		}
		all(of)
	}
	condition := reconciler.True(servingv1beta1.DomainMappingConditionReferenceResolved)
	if len(faults) > 0 {
		condition = reconciler.False(servingv1beta1.DomainMappingConditionReferenceResolved, ReasonResolveFailed, strings.Join(faults, "; "))
	}
	found.resolved = &condition
	return nil
}

// target resolves a reference.
func (r *Reconciler) target(mapping *servingv1beta1.DomainMapping, ref duckv1.KReference) (target, error) {
	ref.SetNamespace(mapping.Namespace)
	missing := func(err error) (target, error) {
		if !apierrors.IsNotFound(err) {
			return target{}, err
		}
		return unresolvable("failed to get object %s/%s: %v", ref.Namespace, ref.Name, err), nil
	}
	host := ref.Name + "." + ref.Namespace + ".svc." + r.URLs.ClusterDomain
	if ref.Namespace != mapping.Namespace {
		return unresolvable("resolved URI %q must be in same namespace as DomainMapping", "http://"+host), nil
	}
	key := routing.Key{Namespace: ref.Namespace, Name: ref.Name}
	switch kindOf(&ref) {
	case serviceKind:
		service, err := r.Services.Services(ref.Namespace).Get(ref.Name)
		if err != nil {
			return missing(err)
		}
		if service.Status.Address == nil {
			return unresolvable("address not set for Service %q", ref.Name), nil
		}
	case routeKind:
	case coreServiceKind:
		owner, known, err := r.Claims.Owner(host, r.Settings())
		if err != nil {
			return target{}, err
		}
		if !known || owner.Kind != hostnames.Route || owner.Key.Namespace != ref.Namespace {
			unknown := unresolvable("core Service %q does not belong to a Route: the gateway reaches only Services and Routes of Knative", ref.Name)
			unknown.retry = true
			return unknown, nil
		}
		key = owner.Key
	default:
		return unresolvable("%s %q of %s cannot be mapped: must be a Service or Route of serving.knative.dev, or the core Service of a Route", ref.Kind, ref.Name, ref.APIVersion), nil
	}
	route, err := r.Routes.Routes(key.Namespace).Get(key.Name)
	if err != nil {
		return missing(err)
	}
	if route.Status.Address == nil {
		return unresolvable("address not set for Route %q", key.Name), nil
	}
	return target{alias: &routing.Alias{Route: key, Host: host}, served: servedByAll(route)}, nil
}

// The kinds that can be mapped.
var (
	serviceKind     = schema.GroupKind{Group: servingv1.GroupName, Kind: "Service"}
	routeKind       = schema.GroupKind{Group: servingv1.GroupName, Kind: "Route"}
	coreServiceKind = schema.GroupKind{Kind: "Service"}
)

// kindOf returns the kind of a reference, or the zero value if its apiVersion is invalid.
func kindOf(ref *duckv1.KReference) schema.GroupKind {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return schema.GroupKind{}
	}
	return gv.WithKind(ref.Kind).GroupKind()
}

// servedByAll reports whether the gateways of all replicas serve some assignment of a Route, according to its status.
func servedByAll(route *servingv1.Route) bool {
	if len(route.Status.Traffic) == 0 {
		return false
	}
	c := route.Status.Conditions.Get(servingv1.RouteConditionIngressReady)
	return c != nil && (c.Status != corev1.ConditionUnknown || c.Reason != reasonIngressNotConfigured)
}

// findings determine the status of a DomainMapping.
type findings struct {
	url     string
	claimed duckv1.Condition
	tls     hosttls.Findings
	// resolved is ReferenceResolved; nil if the claim failed.
	resolved *duckv1.Condition
	// target is the host of a Route that gets the requests, except for the ones below a path; nil without one. paths are the ones below
	// spec.paths.
	target *routing.Alias
	paths  []routing.Path
	// unserved is true if the gateways of some replica do not serve the host name, or a Route that gets requests.
	unserved bool
	// retry is true if a target must be resolved again, because its changes are not watched.
	retry bool
}

// reached reports whether some requests reach an application.
func (f *findings) reached() bool {
	return f.target != nil || slices.ContainsFunc(f.paths, func(p routing.Path) bool { return p.Alias != nil })
}

// route returns the route of the gateway, or nil.
func (f *findings) route(mapping *servingv1beta1.DomainMapping) *routing.Route {
	if !f.reached() {
		return nil
	}
	route := &routing.Route{Key: keyOf(mapping)}
	for _, name := range hosts(mapping) {
		route.Hosts = append(route.Hosts, routing.Host{
			Name: name, Alias: f.target, Paths: f.paths, Certificate: f.tls.Serves(name), RedirectToHTTPS: f.tls.Redirects(name),
		})
	}
	return route
}

const reasonIngressNotConfigured = "IngressNotConfigured"

// dependents are the conditions that Ready depends on; the first one that fails determines the reason.
var dependents = []duckv1.ConditionType{
	servingv1beta1.DomainMappingConditionDomainClaimed,
	servingv1beta1.DomainMappingConditionCertificateProvisioned,
	servingv1beta1.DomainMappingConditionReferenceResolved,
	servingv1beta1.DomainMappingConditionIngressReady,
}

// status returns the status of a DomainMapping.
func (f *findings) status(mapping *servingv1beta1.DomainMapping, now metav1.Time) servingv1beta1.DomainMappingStatus {
	status := *mapping.Status.DeepCopy()
	status.URL, status.Address = f.url, &duckv1.Addressable{URL: f.url}
	certificate := reconciler.Unknown(servingv1beta1.DomainMappingConditionCertificateProvisioned, "", "")
	resolved := reconciler.Unknown(servingv1beta1.DomainMappingConditionReferenceResolved, "", "")
	if f.claimed.Status == corev1.ConditionTrue {
		certificate = f.tls.Condition(servingv1beta1.DomainMappingConditionCertificateProvisioned)
	}
	if f.resolved != nil {
		resolved = *f.resolved
	}
	reconciler.Observe(&status.Status, mapping.Generation, now, dependents, f.claimed, certificate, resolved, f.ingress())
	return status
}

// ingress returns IngressReady.
func (f *findings) ingress() duckv1.Condition {
	const t = servingv1beta1.DomainMappingConditionIngressReady
	switch {
	case f.tls.Fault != nil:
		return reconciler.False(t, hosttls.ReasonHTTPProtocolInvalid, f.tls.Fault.Error())
	case !f.reached():
		return reconciler.Unknown(t, reasonIngressNotConfigured, "Ingress has not yet been reconciled.")
	case f.unserved:
		return reconciler.Unknown(t, reasonIngressNotConfigured, "Not all gateways serve the host name yet.")
	}
	return reconciler.True(t)
}
