package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/ownership"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// PeerPath is where PeerHandler is to be served, which sees what follows it.
const PeerPath = "/gateway"

const (
	requestPath = "/request"
	heldPath    = "/held"
	drainedPath = "/drained"

	// maxHeld bounds what another replica tells of one revision, in bytes.
	maxHeld = 8 << 20
	// askRetry is between attempts to ask a replica that is to answer when something has come to be.
	askRetry = 100 * time.Millisecond
)

// PeerHandler serves the other replicas, below PeerPath, which is to be stripped: requests to revisions that belong to this one, and questions
// about those in flight. Who may reach it is to be authenticated before.
func (g *Gateway) PeerHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc(requestPath, g.serveForwarded)
	mux.HandleFunc("GET "+heldPath, g.serveHeld)
	mux.HandleFunc("GET "+drainedPath, g.serveDrained)
	mux.HandleFunc("GET "+routedPath, g.serveRouted)
	return mux
}

// serveHeld tells which requests to a revision are in flight.
func (g *Gateway) serveHeld(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	var usage ownership.Usage
	if p, ok := g.pools.Get(routing.Key{Namespace: query.Get("namespace"), Name: query.Get("revision")}); ok {
		usage.Requests, usage.Owner = p.InFlight()
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(usage) //nolint:errcheck,errchkjson // who asked may have left
}

// askHeld asks another replica which requests to a Revision it has in flight.
func (g *Gateway) askHeld(ctx context.Context, member membership.Member, key routing.Key) (usage ownership.Usage, err error) {
	query := url.Values{"namespace": {key.Namespace}, "revision": {key.Name}}
	err = g.get(ctx, member, heldPath, query, func(body io.Reader) error {
		return json.NewDecoder(io.LimitReader(body, maxHeld)).Decode(&usage)
	})
	return usage, err
}

var errNoPeers = errors.New("there is no way to other replicas")

// get asks another replica. Nil reads nothing of its answer but that it is one.
func (g *Gateway) get(ctx context.Context, member membership.Member, path string, query url.Values, read func(io.Reader) error) error {
	if g.options.Forward == nil {
		return errNoPeers
	}
	u := url.URL{Scheme: "https", Host: member.Address, Path: PeerPath + path, RawQuery: query.Encode()}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return fmt.Errorf("asking replica %s: %w", member.Name, err)
	}
	res, err := g.options.Forward.RoundTrip(r)
	if err != nil {
		return fmt.Errorf("asking replica %s: %w", member.Name, err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("asking replica %s for %s: %s", member.Name, path, res.Status)
	}
	if read == nil {
		return nil
	}
	if err := read(res.Body); err != nil {
		return fmt.Errorf("reading what replica %s answers: %w", member.Name, err)
	}
	return nil
}

// askUntil asks another replica again and again until it answers, or gone says that it need not. It fails with the last error
// when ctx ends before.
func (g *Gateway) askUntil(ctx context.Context, member membership.Member, path string, query url.Values, gone func(err error) bool) error {
	retry := time.NewTicker(askRetry)
	defer retry.Stop()
	for {
		err := g.get(ctx, member, path, query, nil)
		if err == nil || gone(err) {
			return nil
		}
		select {
		case <-retry.C:
		case <-ctx.Done():
			return err
		}
	}
}
