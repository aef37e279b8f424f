package ingress

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// channelsPath is the first of the three elements of the path of a Channel. The path of a Broker has two elements, so a
// namespace may have this name.
const channelsPath = "channels"

// target returns the stream that a request addresses. It fails with status 404 if the address is invalid.
func (h *Handler) target(r *http.Request) (eventing.Key, error) {
	key, found := keyOf(r.Host, r.URL.Path)
	if !found {
		return key, &Refusal{
			Status:  http.StatusNotFound,
			Message: "the path must be '/<namespace>/<broker>' or '/" + channelsPath + "/<namespace>/<channel>'",
		}
	}
	if h.find != nil && !h.exists(key) {
		if full, found := h.find(key); found {
			return full, nil
		}
	}
	return key, nil
}

// missing returns the response to a request for a stream that does not exist.
func missing(key eventing.Key) error {
	return &Refusal{Status: http.StatusNotFound, Message: fmt.Sprintf("%.600s does not exist", key)}
}

// keyOf returns the stream at a host and a path. The host only matters if the path is /.
func keyOf(host, path string) (key eventing.Key, found bool) {
	path = strings.TrimSuffix(strings.TrimPrefix(path, "/"), "/")
	if path == "" {
		return keyOfHost(host)
	}
	first, rest, _ := strings.Cut(path, "/")
	second, third, more := strings.Cut(rest, "/")
	switch {
	case !more:
		key = eventing.Key{Kind: eventing.Broker, Namespace: first, Name: second}
	case first == channelsPath && !strings.Contains(third, "/"):
		key = eventing.Key{Kind: eventing.Channel, Namespace: second, Name: third}
	}
	return key, key.Namespace != "" && key.Name != ""
}

// keyOfHost returns the Channel of a host name <channel>-kn-channel.<namespace>, optionally with .svc, a cluster domain and a
// port.
func keyOfHost(host string) (key eventing.Key, found bool) {
	host, _, _ = strings.Cut(strings.ToLower(host), ":")
	label, rest, _ := strings.Cut(host, ".")
	name, found := strings.CutSuffix(label, eventing.ChannelHostSuffix)
	namespace, domain, _ := strings.Cut(rest, ".")
	if domain != "" && domain != "svc" && !strings.HasPrefix(domain, "svc.") {
		return key, false
	}
	return eventing.Key{Kind: eventing.Channel, Namespace: namespace, Name: name}, found && name != "" && namespace != ""
}

// unserved returns the response to a request with or without TLS where transport-encryption excludes it.
func unserved(tls bool) error {
	scheme, other := "http", "https"
	if tls {
		scheme, other = other, scheme
	}
	return &Refusal{
		Status:  http.StatusNotFound,
		Message: fmt.Sprintf("events are not accepted by %s: use the address with %s in status.address", scheme, other),
	}
}
