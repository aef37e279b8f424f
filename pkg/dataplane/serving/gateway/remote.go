package gateway

import (
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/proxy"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/peer"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// ServicesElement is the first element of the paths of requests that a Remote sends to gateways.
const ServicesElement = "services"

// serviceHeader is namespace/name of the Service of such a request, userHeader the name of its user, escaped like a query.
const (
	serviceHeader = relayPrefix + "Service"
	userHeader    = relayPrefix + "User"
)

// errNoGateway is the error of a request while no replica has a gateway.
var errNoGateway = errors.New("no replica with a gateway")

// noGateway rejects a request that no gateway has received.
var noGateway = &serving.Rejection{Status: http.StatusServiceUnavailable, Body: "no gateway is reachable", RetryAfter: time.Second}

// Remote serves requests to Services that the API server has received at the gateways of other replicas.
type Remote struct {
	// Gateways are the replicas with a gateway, Forward sends requests to them.
	Gateways *membership.View
	Forward  http.RoundTripper
}

// ServeService is like the method of Gateway.
func (g *Remote) ServeService(w http.ResponseWriter, r *http.Request, service routing.Key, user string) {
	forward := httputil.ReverseProxy{
		Transport: g, FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL = &url.URL{Path: "/" + ServicesElement}
			r.Out.Host = ""
			for field := range r.Out.Header {
				if strings.HasPrefix(field, relayPrefix) {
					delete(r.Out.Header, field)
				}
			}
			r.Out.Header.Set(serviceHeader, service.String())
			r.Out.Header.Set(userHeader, url.QueryEscape(user))
			r.Out.Header.Set(targetHeader, r.In.URL.RequestURI())
			r.Out.Header.Set(hostHeader, r.In.Host)
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			switch {
			case errors.Is(err, errNoGateway) || peer.IsUnreachable(err):
				proxy.Reject(w, noGateway)
			case r.Context().Err() == nil:
				klog.FromContext(r.Context()).Info("Failed to forward a request to a gateway", "service", service.String(), "reason", err.Error())
				w.WriteHeader(http.StatusBadGateway)
			}
		},
	}
	forward.ServeHTTP(proxy.InterimWriter(w, r), r)
}

// RoundTrip sends a request to any gateway, and tries another one if nothing was sent, or if a request without a body that changes nothing has
// no response: a gateway that does not know the certificate of this replica yet ends the connection after the request was sent. It implements
// http.RoundTripper.
func (g *Remote) RoundTrip(r *http.Request) (*http.Response, error) {
	members := slices.Clone(g.Gateways.Current().Members())
	rand.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	err := errNoGateway
	for _, member := range members {
		out := r.WithContext(r.Context())
		target := *r.URL
		target.Scheme, target.Host = "https", member.Address
		out.URL = &target
		if r.Body != nil {
			// The caller closes the body; a failed attempt must not close it.
			out.Body = io.NopCloser(r.Body)
		}
		var res *http.Response
		if res, err = g.Forward.RoundTrip(out); err == nil || r.Context().Err() != nil || !peer.IsUnreachable(err) && !repeatable(r) {
			return res, err
		}
	}
	return nil, err
}

// repeatable reports whether a request may be sent again although it may have been received (RFC 9110 9.2.1).
func repeatable(r *http.Request) bool {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return r.Body == nil || r.Body == http.NoBody
	}
	return false
}

// ServiceHandler serves the requests of a Remote below "/services". The caller authenticates the clients, which have authorized the users.
func (g *Gateway) ServiceHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		namespace, name, _ := strings.Cut(r.Header.Get(serviceHeader), "/")
		target, err := url.ParseRequestURI(r.Header.Get(targetHeader))
		user, malformed := url.QueryUnescape(r.Header.Get(userHeader))
		if err != nil || malformed != nil || namespace == "" || name == "" || user == "" {
			proxy.Reject(w, badForwarded)
			return
		}
		in := r.WithContext(r.Context())
		in.URL, in.RequestURI, in.Host = target, r.Header.Get(targetHeader), r.Header.Get(hostHeader)
		in.Header = r.Header.Clone()
		for field := range in.Header {
			if strings.HasPrefix(field, relayPrefix) {
				delete(in.Header, field)
			}
		}
		g.ServeService(w, in, routing.Key{Namespace: namespace, Name: name}, user) //nolint:contextcheck // forwarder.Wait returns the context
	})
}
