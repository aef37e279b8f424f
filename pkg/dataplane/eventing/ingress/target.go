package ingress

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// channelsPath is the first element of the paths of channels. Those of brokers have two elements, so that a namespace
// may have this name.
const channelsPath = "channels"

// target returns the stream that a request is for. It fails with 404 if that cannot be one.
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

// missing is the answer to requests for a stream that there is not.
func missing(key eventing.Key) error {
	return &Refusal{Status: http.StatusNotFound, Message: fmt.Sprintf("there is no %.600s", key)}
}

// keyOf returns the stream that a host and a path stand for. The host matters if the path is / only.
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

// keyOfHost returns the channel of a host name <channel>-kn-channel.<namespace>, that may go on with .svc and a cluster
// domain, and with a port.
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
