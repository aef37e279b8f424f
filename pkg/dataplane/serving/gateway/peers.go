package gateway

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/ownership"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/peer"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// PeerPath is the path prefix of PeerHandler. The caller strips it.
const PeerPath = "/gateway"

const (
	requestPath = "/request"
	usagePath   = "/held"
	drainedPath = "/drained"

	// maxUsage bounds another replica's response about the usage of a Revision, in bytes.
	maxUsage = 8 << 20
	// queryInterval is the interval between attempts of a query that is answered once a condition holds.
	queryInterval = 100 * time.Millisecond
)

// PeerHandler serves requests of other replicas below PeerPath: requests to Revisions that this replica owns, and queries of routes
// and in-flight requests. The caller authenticates the clients.
func (g *Gateway) PeerHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc(requestPath, g.serveForwarded)
	mux.HandleFunc("GET "+usagePath, g.serveUsage)
	mux.HandleFunc("GET "+drainedPath, g.serveDrained)
	mux.HandleFunc("GET "+routedPath, g.serveRouted)
	return mux
}

// serveUsage responds with the number of in-flight requests to a Revision by backend.
func (g *Gateway) serveUsage(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	var usage ownership.Usage
	if p, ok := g.pools.Get(routing.Key{Namespace: query.Get("namespace"), Name: query.Get("revision")}); ok {
		usage.Requests, usage.Owner = p.InFlight()
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(usage) //nolint:errcheck,errchkjson // the client may be gone
}

// askUsage queries another replica for its in-flight requests to a Revision.
func (g *Gateway) askUsage(ctx context.Context, member membership.Member, key routing.Key) (usage ownership.Usage, err error) {
	query := url.Values{"namespace": {key.Namespace}, "revision": {key.Name}}
	err = peerCall(usagePath, query, func(body io.Reader) error {
		return json.NewDecoder(io.LimitReader(body, maxUsage)).Decode(&usage)
	}).Do(ctx, g.options.Forward, member)
	return usage, err
}

// peerCall returns a query to other replicas. read reads the response; nil ignores it.
func peerCall(path string, query url.Values, read func(io.Reader) error) peer.Call {
	return peer.Call{Method: http.MethodGet, Path: PeerPath + path, Query: query, Read: read}
}
