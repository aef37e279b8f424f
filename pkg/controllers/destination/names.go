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
func (refs *References) checkURL(ctx context.Context, u *url.URL) error {
	r := refs.tracker.resolver
	if r.host == nil || r.allowCrossNamespace {
		return nil
	}
	return refs.checkName(ctx, u.Hostname(), u.Path, maxAliases)
}

// checkName is checkURL for a host name and a path.
func (refs *References) checkName(ctx context.Context, host, path string, aliases int) error {
	r := refs.tracker.resolver
	services, certain := r.servicesOf(host)
	for _, name := range services {
		if err := refs.checkService(ctx, name, path, certain, aliases); err != nil {
			return err
		}
	}
	return nil
}

// checkService is checkURL for a core Service. certain is false if the name may also be a name outside of the cluster. It is
// treated as one while the Service does not exist.
func (refs *References) checkService(ctx context.Context, name types.NamespacedName, path string, certain bool, aliases int) error {
	r := refs.tracker.resolver
	if name == r.network.ingress() {
		return refs.checkStream(ctx, name, path)
	}
	ref := coreService(name)
	foreign := name.Namespace != refs.referrer.Namespace
	obj, err := refs.hostObject(ctx, ref)
	fault, missing := AsUnresolved(err)
	switch {
	case missing && fault.Reason != ReasonNotFound, err != nil && !missing:
		return err
	case missing && foreign && certain:
		return refs.notGranted(ref)
	case missing:
		// The referrer is reconciled when the Service is created.
		return nil
	case foreign && !refs.granted(annotation(obj), true):
		return refs.notGranted(ref)
	}
	alias := externalName(obj)
	switch {
	case alias == "" || alias == r.hostName(r.network.gateway()):
		return nil
	case alias == r.hostName(r.network.ingress()):
		if strings.Trim(path, "/") == "" {
			// The host name is the address of the Channel with the name and namespace of the Service.
			return nil
		}
		return refs.checkStream(ctx, name, path)
	case aliases == 0:
		return unresolved(ReasonInvalid, "%s leads to another name too many times", describe(ref))
	default:
		return refs.checkName(ctx, alias, path, aliases-1)
	}
}

// checkStream is checkURL for a path of the broker behind a core Service.
func (refs *References) checkStream(ctx context.Context, service types.NamespacedName, path string) error {
	ref := streamOf(path)
	if ref == nil {
		// No stream has this path.
		return refs.notGranted(coreService(service))
	}
	if ref.Namespace == refs.referrer.Namespace {
		return nil
	}
	_, err := refs.get(ctx, ref)
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

// servicesOf returns the core Services that a host name may resolve to in the search domains of the Pods of this server: <service>.<namespace> with or without .svc and the cluster's domain, <pod>.<service> and so on, and names
// of one label, which name Services in the server's own namespace. certain is false if the name may also be a name outside of
// the cluster, and the Service may not exist.
func (r *Resolver) servicesOf(host string) (services []types.NamespacedName, certain bool) {
	host = canonical(host)
	if host == "" || net.ParseIP(host) != nil || host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return nil, false
	}
	labels := strings.Split(host, ".")
	for _, suffix := range []string{".svc." + canonical(r.clusterDomain), ".svc"} {
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
		if r.network.Namespace == "" {
			return nil, false
		}
		return []types.NamespacedName{{Namespace: r.network.Namespace, Name: last}}, true
	}
	services = append(services, types.NamespacedName{Namespace: last, Name: labels[len(labels)-2]})
	if r.network.Namespace != "" {
		services = append(services, types.NamespacedName{Namespace: r.network.Namespace, Name: last})
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

// hostName returns the fully qualified host name of a core Service.
func (r *Resolver) hostName(service types.NamespacedName) string {
	return canonical(service.Name + "." + service.Namespace + ".svc." + r.clusterDomain)
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
