package gateway

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/proxy"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/ownership"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/peer"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// Header fields between replicas, which are not sent to clients or backends. They have the parts of a request that a proxy would
// not preserve.
const (
	relayPrefix = "Knative-Gateway-"
	// revisionHeader is namespace/name, pathHeader the names of the replicas that forwarded the request.
	revisionHeader = relayPrefix + "Revision"
	pathHeader     = relayPrefix + "Path"
	targetHeader   = relayPrefix + "Target"
	hostHeader     = relayPrefix + "Host"
	// methodHeader and upgradeHeader are for requests that become a tunnel.
	methodHeader  = relayPrefix + "Method"
	upgradeHeader = relayPrefix + "Upgrade"
	// tunnelHeader in a response means that the body is a tunnel. instanceHeader is the name of the backend that responded.
	tunnelHeader   = relayPrefix + "Tunnel"
	instanceHeader = relayPrefix + "Instance"
)

// maxHops bounds the number of replicas that forward a request while they disagree on its owner.
const maxHops = 16

// ownerPacing limits the duration and the number of attempts to reach an unreachable owner.
var ownerPacing = ownership.Pacing{Patience: 3 * time.Second, FirstPause: 10 * time.Millisecond, LastPause: 200 * time.Millisecond}

var (
	noOwner      = &serving.Rejection{Status: http.StatusServiceUnavailable, Body: "the replica that the revision belongs to is not reachable", RetryAfter: time.Second}
	badForwarded = &serving.Rejection{Status: http.StatusBadRequest, Body: "not a request of another replica"}
)

// ForwardToOwner implements forwarder.
func (f *standardForwarder) ForwardToOwner(owner *membership.Member) serving.Result {
	x := f.exchange
	if waited, err := f.attempts.WaitBeforeReturn(f.Context(), owner.Name); waited {
		return f.retry(err, nil)
	}
	x.entered = x.entered || x.pool.Tenant().Enter(x)
	result := f.Request.Forward(f.sendToOwner(owner))
	if result.Outcome != serving.Unreached {
		return result
	}
	x.exit()
	return f.retry(f.attempts.Wait(f.Context(), nil), result.Err)
}

// retry returns the result of an attempt that did not reach the owner because of cause. err is the error of the wait for the
// next attempt, nil if there may be one.
func (f *standardForwarder) retry(err, cause error) serving.Result {
	switch {
	case err == nil:
		return serving.Result{Outcome: serving.Unreached, Err: cause}
	case errors.Is(err, ownership.ErrUnreachable):
		return serving.Result{Outcome: serving.Rejected, Rejection: noOwner, Err: fmt.Errorf("%w: %w", noOwner, cause)}
	}
	return f.Failed(err)
}

// sendToOwner returns a proxy.Send that sends the request to its owner.
func (f *standardForwarder) sendToOwner(owner *membership.Member) proxy.Send {
	x, options := f.exchange, f.chain.options
	return func(r *http.Request) (*http.Response, error) {
		if options.Forward == nil || len(x.in.path) >= maxHops {
			return nil, proxy.Unreached(peer.ErrNoTransport)
		}
		reached := false
		trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { reached = true }}
		out := r.WithContext(httptrace.WithClientTrace(r.Context(), trace))
		out.URL = &url.URL{Scheme: "https", Host: owner.Address, Path: peerPath + requestPath}
		out.Host = ""
		out.Header = r.Header.Clone()
		out.Header.Set(revisionHeader, x.pool.Key().String())
		path := slices.Concat(x.in.path, []string{options.Members.Current().Self()})
		out.Header.Set(pathHeader, strings.Join(path, ","))
		out.Header.Set(targetHeader, r.URL.RequestURI())
		out.Header.Set(hostHeader, r.Host)
		var res *http.Response
		var err error
		if upgrade := r.Header.Get("Upgrade"); upgrade != "" && !f.HasBody() {
			res, err = tunnel(options.Forward, out, upgrade)
		} else {
			// A tunnel cannot carry a body before the upgrade: the backend gets the request without the upgrade.
			out.Header.Del("Connection")
			out.Header.Del("Upgrade")
			res, err = options.Forward.RoundTrip(out)
		}
		if err != nil {
			if reached {
				return nil, err
			}
			return nil, proxy.Unreached(err)
		}
		x.answeredBy = res.Header.Get(instanceHeader)
		for name := range res.Header {
			if strings.HasPrefix(name, relayPrefix) && !x.in.forwarded() {
				delete(res.Header, name)
			}
		}
		return res, nil
	}
}

// serveForwarded serves a request that another replica has routed to a Revision that this replica owns.
func (c *chain) serveForwarded(w http.ResponseWriter, r *http.Request) {
	namespace, name, _ := strings.Cut(r.Header.Get(revisionHeader), "/")
	target, err := url.ParseRequestURI(r.Header.Get(targetHeader))
	if err != nil || namespace == "" || name == "" {
		proxy.Reject(w, badForwarded)
		return
	}
	in := r.WithContext(r.Context())
	in.URL, in.RequestURI, in.Host = target, r.Header.Get(targetHeader), r.Header.Get(hostHeader)
	upgrade, method := r.Header.Get(upgradeHeader), r.Header.Get(methodHeader)
	in.Header = r.Header.Clone()
	for field := range in.Header {
		if strings.HasPrefix(field, relayPrefix) {
			delete(in.Header, field)
		}
	}
	if upgrade != "" {
		in.Method, in.Body, in.ContentLength = method, http.NoBody, 0
		in.Header.Set("Connection", "Upgrade")
		in.Header.Set("Upgrade", upgrade)
		w = &tunnelWriter{ResponseWriter: w, in: r.Body}
	}
	p := c.pools.Retain(routing.Key{Namespace: namespace, Name: name})
	defer c.pools.Release(p)
	f := c.standard(w, in)
	defer f.End()
	f.attempts.Path = strings.Split(r.Header.Get(pathHeader), ",")
	c.serve(inbound{request: in, revision: p, path: f.attempts.Path}, f) //nolint:contextcheck // forwarder.Wait returns the context
}
