package route

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// URLs configures the host names and URLs of Routes.
type URLs struct {
	// ClusterDomain is the DNS domain of the cluster, such as cluster.local.
	ClusterDomain string
	// Port is the port of the gateway as seen by users; 0 means the default of the scheme.
	Port int
	// PublicAddress makes status.address.url the public URL, for clients that cannot resolve the names of the cluster.
	PublicAddress bool
}

// host is a host name of a Route, or of one of its tags. Local ones are only for callers within the cluster; internal ones
// follow from the names of the core Services.
type host struct {
	name, tag       string
	local, internal bool
}

// addresses are the host names of a Route and the URLs made of them.
type addresses struct {
	hosts []host
	// url is the Route's URL, internal that within the cluster; url is empty where it would be no DNS name.
	url, internal string
	// tags are the URLs of the tags.
	tags map[string]string
	// services are the core Services of the Route and of its tags, whether or not it gets their host names.
	services []service
	// faults are the errors of names that are no DNS names.
	faults []error
}

// service is a core Service by whose name a Route, or one of its tags, is called within the cluster.
type service struct{ name, host string }

// tagsOf are the tags that a Route has or still has, sorted.
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

// addressesOf returns the host names of a Route and its tags (serving 8-3, 10.2-6): the public one, unless it is
// to be reached within the cluster only, and those by which others in the cluster call it. private names the core Services
// whose Route or tag gets no public one.
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
		url := urls.of("http", full)
		if tag == "" {
			a.internal = url
		}
		if !local {
			url = ""
			public, err := s.Network.Hostname(name, route.Namespace, domain, route.Labels, route.Annotations)
			if err != nil {
				a.faults = append(a.faults, err)
			} else {
				url = urls.of(cmp.Or(s.Network.DefaultExternalScheme, "http"), public)
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

// of returns a URL whose port is left out where the scheme implies it.
func (u URLs) of(scheme, name string) string {
	if u.Port == 0 || scheme == "http" && u.Port == 80 || scheme == "https" && u.Port == 443 {
		return scheme + "://" + name
	}
	return scheme + "://" + net.JoinHostPort(name, strconv.Itoa(u.Port))
}

// names are the host names alone, sorted.
func (a *addresses) names() []string {
	names := make([]string, 0, len(a.hosts))
	for _, h := range a.hosts {
		names = append(names, h.name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// table returns the route of the gateway for a Route's hosts, without the hosts that it has lost to other Routes; nil if no target is
// assigned.
func table(key routing.Key, hosts []host, targets []target, lost map[string]routing.Key, tagHeader bool) *routing.Route {
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

// ofTag returns the targets of a tag, which has all requests to its host names, whatever its percent.
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

// placeholders returns the names of the core Services of a Route, except for hosts that it has lost to other Routes.
func (a *addresses) placeholders(lost map[string]routing.Key) []string {
	var names []string
	for _, s := range a.services {
		if _, isLost := lost[s.host]; !isLost {
			names = append(names, s.name)
		}
	}
	return names
}

// conflict returns a message about a host that belongs to another Route, or "".
func (a *addresses) conflict(lost map[string]routing.Key) string {
	for _, h := range a.hosts {
		if owner, ok := lost[h.name]; ok {
			return fmt.Sprintf("Host name %q belongs to Route %q, which claimed it first.", h.name, owner)
		}
	}
	return ""
}
