package destination

import (
	"context"
	"net"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/net/idna"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
)

// maxAliases bounds the number of Services of type ExternalName in a chain.
const maxAliases = 4

// Network names the Services of this server in the host cluster.
type Network struct {
	// Namespace is the namespace of this server. Host names of one label name Services in it.
	Namespace string
	// Ingress is the Service of the broker, whose paths name Brokers and Channels of all namespaces. Gateway is the
	// Service of the gateway, which distinguishes Services by their host name alone.
	Ingress, Gateway string
}

// checkURL returns *Unresolved unless events of the referrer may be sent to a URL: an object that names a Service, Broker or
// Channel of another namespace by its URL needs the same grant as an object that refers to it.
func checkURL(ctx context.Context, refs *References, u *url.URL) error {
	r := refs.tracker.resolver
	if r.host == nil || r.allowCrossNamespace {
		return nil
	}
	return urlCheck{refs, r.host, r.names, u.Path}.host(ctx, u.Hostname(), maxAliases)
}

// urlCheck is the check of a URL: of its host name, and of the names and objects that this leads to.
type urlCheck struct {
	refs  *References
	kinds *hostKinds
	names hostNames
	// path is the path of the URL.
	path string
}

// host checks a host name.
func (c urlCheck) host(ctx context.Context, host string, aliases int) error {
	services, certain := c.names.services(host)
	for _, name := range services {
		if err := c.service(ctx, name, certain, aliases); err != nil {
			return err
		}
	}
	return nil
}

// service checks a core Service. certain is false if the name may also be a name outside of the cluster. It is treated as one
// while the Service does not exist.
func (c urlCheck) service(ctx context.Context, name types.NamespacedName, certain bool, aliases int) error {
	if name == c.names.ingress() {
		return c.stream(ctx, name)
	}
	ref := coreService(name)
	obj, err := c.kinds.get(ctx, ref, c.refs)
	fault, missing := AsUnresolved(err)
	switch {
	case missing && fault.Reason != ReasonNotFound, err != nil && !missing:
		return err
	case missing && !certain:
		// The referrer is reconciled when the Service is created.
		return nil
	}
	if err := c.refs.grants.check(ref, annotation(obj), !missing); err != nil || missing {
		return err
	}
	alias := externalName(obj)
	switch {
	case alias == "" || alias == c.names.of(c.names.gateway()):
		return nil
	case alias == c.names.of(c.names.ingress()):
		if strings.Trim(c.path, "/") == "" {
			// The host name is the address of the Channel with the name and namespace of the Service.
			return nil
		}
		return c.stream(ctx, name)
	case aliases == 0:
		return unresolved(ReasonInvalid, "%s leads to another name too many times", describe(ref))
	default:
		return c.host(ctx, alias, aliases-1)
	}
}

// stream checks the Broker or Channel that the path names at the broker behind a core Service.
func (c urlCheck) stream(ctx context.Context, service types.NamespacedName) error {
	ref := streamOf(c.path)
	if ref == nil {
		// No stream has this path.
		return c.refs.grants.missing(coreService(service))
	}
	if ref.Namespace == c.refs.referrer.Namespace {
		return nil
	}
	_, err := c.refs.get(ctx, ref)
	return err
}

// streamOf returns the Broker or Channel of a path of the broker, or nil: /<namespace>/<broker> or /channels/<namespace>/<channel>.
func streamOf(path string) *duckv1.KReference {
	elements := strings.Split(strings.TrimSuffix(strings.TrimPrefix(path, "/"), "/"), "/")
	switch {
	case len(elements) == 2:
		return &duckv1.KReference{APIVersion: eventingv1.SchemeGroupVersion.String(), Kind: "Broker", Namespace: elements[0], Name: elements[1]}
	case len(elements) == 3 && elements[0] == "channels":
		return &duckv1.KReference{APIVersion: messagingv1.SchemeGroupVersion.String(), Kind: "Channel", Namespace: elements[1], Name: elements[2]}
	}
	return nil
}

// hostNames are the names of core Services in the DNS of the cluster.
type hostNames struct {
	Network
	clusterDomain string
}

// services returns the core Services that a host name may resolve to in the search domains of the Pods of this server:
// <service>.<namespace> with or without .svc and the cluster's domain, <pod>.<service> and so on, and names of one label, which
// name Services in the server's own namespace. certain is false if the name may also be a name outside of the cluster, and the
// Service may not exist.
func (n hostNames) services(host string) (services []types.NamespacedName, certain bool) {
	host = canonical(host)
	if host == "" || net.ParseIP(host) != nil || host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return nil, false
	}
	labels := strings.Split(host, ".")
	for _, suffix := range []string{".svc." + canonical(n.clusterDomain), ".svc"} {
		inner, found := strings.CutSuffix(host, suffix)
		if of := strings.Split(inner, "."); found && len(of) > 1 {
			return []types.NamespacedName{{Namespace: of[len(of)-1], Name: of[len(of)-2]}}, true
		}
	}
	last := labels[len(labels)-1]
	if i := slices.Index(labels, "svc"); i > 1 {
		// The cluster may have another domain than clusterDomain.
		services = append(services, types.NamespacedName{Namespace: labels[i-1], Name: labels[i-2]})
	}
	if len(labels) == 1 {
		if n.Namespace == "" {
			return nil, false
		}
		return []types.NamespacedName{{Namespace: n.Namespace, Name: last}}, true
	}
	services = append(services, types.NamespacedName{Namespace: last, Name: labels[len(labels)-2]})
	if n.Namespace != "" {
		services = append(services, types.NamespacedName{Namespace: n.Namespace, Name: last})
	}
	return services, false
}

// canonical returns a host name in lower case and ASCII, without the trailing dot.
func canonical(host string) string {
	if ascii, err := idna.Lookup.ToASCII(host); err == nil {
		host = ascii
	}
	return strings.ToLower(strings.TrimRight(host, "."))
}

// of returns the fully qualified host name of a core Service.
func (n hostNames) of(service types.NamespacedName) string {
	return canonical(service.Name + "." + service.Namespace + ".svc." + n.clusterDomain)
}

func (n Network) ingress() types.NamespacedName {
	return types.NamespacedName{Namespace: n.Namespace, Name: n.Ingress}
}

func (n Network) gateway() types.NamespacedName {
	return types.NamespacedName{Namespace: n.Namespace, Name: n.Gateway}
}

func coreService(name types.NamespacedName) *duckv1.KReference {
	return &duckv1.KReference{APIVersion: "v1", Kind: "Service", Namespace: name.Namespace, Name: name.Name}
}

// externalName returns the external name of a core Service of type ExternalName, or "".
func externalName(obj *unstructured.Unstructured) string {
	if kind, _, err := unstructured.NestedString(obj.Object, "spec", "type"); err != nil || kind != string(corev1.ServiceTypeExternalName) {
		return ""
	}
	name, _, err := unstructured.NestedString(obj.Object, "spec", "externalName")
	if err != nil {
		return ""
	}
	return canonical(name)
}
