package gateway

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/backoff"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/http1"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// Header fields between replicas, which go neither in nor out. They say what the request is on its way to the
// instance, and what a proxy would not keep.
const (
	relayPrefix = "Knative-Gateway-"
	// revisionHeader is namespace/name, pathHeader the names of the replicas it came through.
	revisionHeader = relayPrefix + "Revision"
	pathHeader     = relayPrefix + "Path"
	targetHeader   = relayPrefix + "Target"
	hostHeader     = relayPrefix + "Host"
	// methodHeader and upgradeHeader are for requests that become a tunnel.
	methodHeader  = relayPrefix + "Method"
	upgradeHeader = relayPrefix + "Upgrade"
	// tunnelHeader of an answer tells that what follows is a connection; instanceHeader is who answered.
	tunnelHeader   = relayPrefix + "Tunnel"
	instanceHeader = relayPrefix + "Instance"
)

const (
	// ownerPatience is how long a request waits for an owner that cannot be reached.
	ownerPatience = 3 * time.Second
	// maxHops bounds the replicas that a request goes through while they do not agree on its owner.
	maxHops = 16
	// firstOwnerPause and lastOwnerPause are between attempts to reach one.
	firstOwnerPause, lastOwnerPause = 10 * time.Millisecond, 200 * time.Millisecond
)

var (
	noOwner     = &http1.Refusal{Status: http.StatusServiceUnavailable, Body: "the replica that the revision belongs to is not reachable", RetryAfter: time.Second}
	badRelaying = &http1.Refusal{Status: http.StatusBadRequest, Body: "not a request of another replica"}
)

// relays takes the requests to revisions of other replicas there.
type relays struct {
	members *membership.View
	forward http.RoundTripper
}

// send sends a request to the owner of its revision. ok is false where that is not possible now, and nothing was sent.
func (t *relays) send(r *http.Request, x *exchange, body *meteredRequest, owner *membership.Member) (res *http.Response, ok bool, err error) {
	if t.forward == nil || len(x.path) >= maxHops {
		return nil, false, nil
	}
	reached := false
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { reached = true }}
	out := r.WithContext(httptrace.WithClientTrace(r.Context(), trace))
	out.URL = &url.URL{Scheme: "https", Host: owner.Address, Path: PeerPath + requestPath}
	out.Host = ""
	out.Header = r.Header.Clone()
	out.Header.Set(revisionHeader, x.pool.key.String())
	out.Header.Set(pathHeader, strings.Join(append(x.path[:len(x.path):len(x.path)], t.members.Current().Self()), ","))
	out.Header.Set(targetHeader, r.URL.RequestURI())
	out.Header.Set(hostHeader, r.Host)
	if body != nil {
		out.Body = body
	}
	if upgrade := r.Header.Get("Upgrade"); upgrade != "" && body == nil {
		res, err = t.tunnel(out, upgrade)
	} else {
		// A body before the upgrade has no place in a tunnel: the instance answers as if it were not asked for one.
		out.Header.Del("Connection")
		out.Header.Del("Upgrade")
		res, err = t.forward.RoundTrip(out)
	}
	if err != nil {
		return nil, reached || body != nil && body.begun.Load(), err
	}
	x.answered = res.Header.Get(instanceHeader)
	for name := range res.Header {
		if strings.HasPrefix(name, relayPrefix) && !x.relayed {
			delete(res.Header, name)
		}
	}
	return res, true, nil
}

// serveRelayed serves a request that another replica got, to a revision of this one.
func (g *Gateway) serveRelayed(w http.ResponseWriter, r *http.Request) {
	namespace, name, _ := strings.Cut(r.Header.Get(revisionHeader), "/")
	target, err := url.ParseRequestURI(r.Header.Get(targetHeader))
	if err != nil || namespace == "" || name == "" {
		answer(w, badRelaying)
		return
	}
	in := r.WithContext(r.Context())
	in.URL, in.RequestURI, in.Host = target, r.Header.Get(targetHeader), r.Header.Get(hostHeader)
	path := strings.Split(r.Header.Get(pathHeader), ",")
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
	key := routing.Key{Namespace: namespace, Name: name}
	p := g.hold(key)
	defer g.unhold(p)
	if refusal := p.tenant.admit(); refusal != nil {
		answer(w, refusal)
		return
	}
	x := g.begin(p, netip.AddrPort{}, r.Header.Get(traceparentField))
	x.request, x.relayed, x.path = in, true, path
	if x.series != nil {
		// The replica that took the request in counts it.
		x.series.inFlight.Dec()
		x.series = nil
	}
	if !x.Hold(memoryOf(in)) {
		answer(w, http1.OverBudget)
		x.Done(http1.Result{Status: http1.OverBudget.Status})
		return
	}
	g.forward(w, in, x)
}

// hold returns the pool of a revision, which stays until unhold even if nothing else is known of it.
func (g *Gateway) hold(key routing.Key) *pool {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.pool(key)
	p.routes++
	return p
}

func (g *Gateway) unhold(p *pool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p.routes--
	g.drop(p)
}

// reach is the patience of a request with owners that cannot be reached.
type reach struct {
	until time.Time
	// attempts is the number of attempts that failed.
	attempts int
	// turned tells that the request has waited because it would go back.
	turned bool
}

// back waits, once, if the owner is a replica that took the request for another one's: one of both does not know the
// members of now.
func (p *reach) back(ctx context.Context, x *exchange, owner *membership.Member) (waited bool, err error) {
	if p.turned || !slices.Contains(x.path, owner.Name) {
		return false, nil
	}
	p.turned = true
	p.attempts = len(x.path) / 2
	return true, p.wait(ctx, nil)
}

// wait waits before the next attempt, and returns an error when there is none.
func (p *reach) wait(ctx context.Context, cause error) error {
	now := time.Now()
	if p.until.IsZero() {
		p.until = now.Add(ownerPatience)
	}
	if !now.Before(p.until) {
		return errors.Join(refusedError{noOwner}, cause)
	}
	p.attempts++
	if !backoff.Sleep(ctx, clock.RealClock{}, backoff.Delay(p.attempts, firstOwnerPause, lastOwnerPause)) {
		return context.Cause(ctx)
	}
	return nil
}
