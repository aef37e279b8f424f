package route

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/hostnames"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/hosttls"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// URLs configures the host names and URLs of Routes.
type URLs struct {
	// ClusterDomain is the DNS domain of the cluster, such as cluster.local.
	ClusterDomain string
	// Port is the port of the gateway as seen by users; 0 means the default of the scheme.
	Port int
	// TLSPort is the port of the gateway for HTTPS as seen by users; 0 means 443.
	TLSPort int
	// PublicAddress makes status.address.url the public URL, for clients that cannot resolve the names of the cluster.
	PublicAddress bool
	// Authority returns the certificate authority of public host names in PEM, for clients of a public address that is HTTPS. Nil without
	// PublicAddress.
	Authority func() string
}

// host is a host name of a Route, or of one of its tags. Local host names are only for callers within the cluster; internal ones are
// derived from the names of the core Services.
type host struct {
	name, tag       string
	local, internal bool
}

// addresses are the host names of a Route and their URLs.
type addresses struct {
	hosts []host
	// url is the Route's URL, and internal its URL within the cluster; url is empty if its host would not be a DNS name.
	url, internal string
	// authority is the certificate authority of internal in PEM, or empty.
	authority string
	// tags are the URLs of the tags.
	tags map[string]string
	// services are the core Services of the Route and of its tags, whether or not it gets their host names.
	services []service
	// faults are the errors of host names that are not DNS names.
	faults []error
}

// service is a core Service by whose name a Route, or one of its tags, is called within the cluster.
type service struct{ name, host string }

// tagsOf returns the tags in the spec and the status of a Route, sorted.
func tagsOf(route *servingv1.Route) []string {
	var tags []string
	for _, traffic := range [][]servingv1.TrafficTarget{route.Spec.Traffic, route.Status.Traffic} {
		for _, t := range traffic {
			if t.Tag != "" {
				tags = append(tags, t.Tag)
			}
		}
	}
	slices.Sort(tags)
	return slices.Compact(tags)
}

// addressesOf returns the host names of a Route and its tags (serving 8-3, 10.2-6): the public one, unless the Route is cluster-local,
// and the names for callers within the cluster. private lists the core Services whose Route or tag gets no public host name.
func addressesOf(route *servingv1.Route, s *settings.Settings, urls URLs, private []string) addresses {
	a := addresses{tags: map[string]string{}}
	allLocal := route.Labels[servingv1.VisibilityLabelKey] == servingv1.VisibilityClusterLocal
	domain := s.Domain.For(route.Labels)
	clusterSuffix := ".svc." + urls.ClusterDomain
	for _, tag := range append([]string{""}, tagsOf(route)...) {
		name := route.Name
		if tag != "" {
			var err error
			if name, err = s.Network.TagName(tag, route.Name); err != nil {
				a.faults = append(a.faults, err)
				continue
			}
		}
		local := allLocal || slices.Contains(private, name)
		internal := name + "." + route.Namespace
		full := internal + clusterSuffix
		a.hosts = append(a.hosts, host{full, tag, true, true}, host{internal + ".svc", tag, true, true}, host{internal, tag, true, true})
		a.services = append(a.services, service{name, internal})
		url := urls.Of("http", full)
		if tag == "" {
			a.internal = url
		}
		if !local {
			url = ""
			public, err := s.Network.Hostname(name, route.Namespace, domain, route.Labels, route.Annotations)
			if err != nil {
				a.faults = append(a.faults, err)
			} else {
				url = urls.Of(cmp.Or(s.Network.DefaultExternalScheme, "http"), public)
				// Operators may configure public names that equal names within the cluster.
				if !slices.Contains(a.hosts, host{public, tag, true, true}) {
					a.hosts = append(a.hosts, host{public, tag, strings.HasSuffix(public, clusterSuffix), false})
				}
			}
		}
		if tag == "" {
			a.url = url
		} else {
			a.tags[tag] = url
		}
	}
	if urls.PublicAddress && a.url != "" {
		a.internal = a.url
	}
	return a
}

// Of returns a URL, without the port if it is the default port of the scheme.
func (u URLs) Of(scheme, name string) string {
	if u.Port == 0 || scheme == "http" && u.Port == 80 || scheme == "https" && u.Port == 443 {
		return scheme + "://" + name
	}
	return scheme + "://" + net.JoinHostPort(name, strconv.Itoa(u.Port))
}

// Secure returns the URL of a host name with HTTPS.
func (u URLs) Secure(name string) string {
	return URLs{Port: u.TLSPort}.Of("https", name)
}

// names returns the host names, sorted.
func (a *addresses) names() []string {
	names := make([]string, 0, len(a.hosts))
	for _, h := range a.hosts {
		names = append(names, h.name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// table returns the route of the gateway for a Route's hosts, without the hosts that it has lost to other objects; nil if no target is
// assigned. tls is the state of the certificates of the hosts.
func table(key routing.Key, hosts []host, targets []target, lost map[string]hostnames.Owner, tagHeader bool, tls *hosttls.Findings) *routing.Route {
	if len(targets) == 0 {
		return nil
	}
	var tags map[string]routing.Key
	if tagHeader {
		tags = map[string]routing.Key{}
		for _, t := range targets {
			if t.tag != "" {
				tags[t.tag] = revisionKey(key, t)
			}
		}
	}
	route := &routing.Route{Key: key}
	for _, h := range hosts {
		if _, isLost := lost[h.name]; isLost {
			continue
		}
		shares := targets
		if h.tag != "" {
			shares = ofTag(targets, h.tag)
		}
		entry := routing.Host{Name: h.name, ClusterLocal: h.local, Targets: merged(key, shares)}
		entry.Certificate, entry.RedirectToHTTPS = tls.Serves(h.name), tls.Redirects(h.name)
		if len(entry.Targets) == 0 {
			continue
		}
		if h.tag == "" {
			entry.Tags = tags
		}
		route.Hosts = append(route.Hosts, entry)
	}
	return route
}

// ofTag returns the targets of a tag, which receive all requests to its host names regardless of their percent.
func ofTag(targets []target, tag string) []target {
	var tagged []target
	for _, t := range targets {
		if t.tag == tag {
			tagged = append(tagged, t)
		}
	}
	if len(tagged) == 1 {
		tagged[0].percent = 100
		return tagged
	}
	if !slices.ContainsFunc(tagged, func(t target) bool { return t.percent > 0 }) {
		return nil
	}
	return scaled(tagged, 100)
}

// merged combines the targets of the same Revision, and drops targets without a share.
func merged(key routing.Key, targets []target) []routing.Target {
	var result []routing.Target
	for _, t := range targets {
		if t.percent == 0 {
			continue
		}
		revision := revisionKey(key, t)
		if i := slices.IndexFunc(result, func(r routing.Target) bool { return r.Revision == revision }); i >= 0 {
			result[i].Percent += int(t.percent)
			continue
		}
		result = append(result, routing.Target{Revision: revision, Percent: int(t.percent)})
	}
	return result
}

func revisionKey(route routing.Key, t target) routing.Key {
	return routing.Key{Namespace: route.Namespace, Name: t.revision}
}

// placeholders returns the names of the core Services of a Route, except for hosts that it has lost to other objects.
func (a *addresses) placeholders(lost map[string]hostnames.Owner) []string {
	var names []string
	for _, s := range a.services {
		if _, isLost := lost[s.host]; !isLost {
			names = append(names, s.name)
		}
	}
	return names
}

// conflict returns a message about a host that belongs to another object, or "".
func (a *addresses) conflict(lost map[string]hostnames.Owner) string {
	for _, h := range a.hosts {
		if owner, ok := lost[h.name]; ok {
			return fmt.Sprintf("Host name %q belongs to %s, which claimed it first.", h.name, owner)
		}
	}
	return ""
}
