package gateway

import (
	"encoding/json"
	"net/http"

	"github.com/knative-apiserver/knative-apiserver/pkg/replica/ownership"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// The paths of PeerHandler. The caller strips peerPath.
const (
	peerPath     = "/gateway"
	requestPath  = "/request"
	usagePath    = "/held"
	drainedPath  = "/drained"
	routedPath   = "/routed"
	standingPath = "/standing"
	leftPath     = "/left"
)

// PeerHandler serves requests of other replicas below "/gateway": requests to Revisions that this replica owns, and queries of
// routes, in-flight requests and membership. The caller authenticates the clients.
func (g *Gateway) PeerHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc(requestPath, g.chain.serveForwarded)
	mux.HandleFunc("GET "+usagePath, g.serveUsage)
	mux.HandleFunc("GET "+drainedPath, g.drains.serveDrained)
	mux.HandleFunc("GET "+routedPath, g.routes.serveRouted)
	mux.HandleFunc("POST "+standingPath, g.replicas.serveStanding)
	mux.HandleFunc("POST "+leftPath, g.replicas.serveLeft)
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
