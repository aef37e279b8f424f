package route

import (
	"context"
	"fmt"
	"hash/adler32"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/certs/hostcerts"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/certmanager"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/hosttls"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// certificatesKind is the kind of the owners of requests for certificates.
const certificatesKind = "Route"

func certificatesOwner(key routing.Key) hostcerts.Owner {
	return hostcerts.Owner{Kind: certificatesKind, Key: key}
}

// secure requests the certificates of a Route's public host names, except for the ones of isLost, and makes the URLs of host names with a
// certificate HTTPS.
func (r *Reconciler) secure(ctx context.Context, route *servingv1.Route, a *addresses, isLost func(name string) bool, network *settings.Network) hosttls.Findings {
	tags := map[string]string{}
	object := hosttls.Object{
		Owner: certificatesOwner(keyOf(route)), Annotations: route.Annotations, Local: true,
		Managed: certmanager.Object{
			Meta: route, Kind: servingv1.SchemeGroupVersion.WithKind(certificatesKind), Labels: map[string]string{RouteLabelKey: route.Name},
		},
		ManagedName: func(host string) string { return certificateName(route, tags[host]) },
	}
	for _, h := range a.hosts {
		if h.local || h.internal {
			continue
		}
		if object.Local = false; !isLost(h.name) {
			object.Public = append(object.Public, h.name)
			tags[h.name] = h.tag
		}
	}
	found := hosttls.Secure(ctx, r.Certificates, r.CertManager, object, network)
	for name, tag := range tags {
		switch {
		case !found.HTTPS(name):
		case tag == "":
			a.url = r.URLs.Secure(name)
			if r.URLs.PublicAddress && found.Redirects(name) {
				// Senders of events do not follow redirects.
				a.internal, a.authority = a.url, r.URLs.Authority()
			}
		default:
			a.tags[tag] = r.URLs.Secure(name)
		}
	}
	return found
}

// certificateName returns the name of the Certificate of cert-manager for the host name of a Route, or of one of its tags, as in Knative's
// releases.
func certificateName(route *servingv1.Route, tag string) string {
	name := "route-" + string(route.UID)
	if tag != "" {
		name += fmt.Sprintf("-%d", adler32.Checksum([]byte(tag)))
	}
	return name
}
