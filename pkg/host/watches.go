// Package host connects to an API server that other processes run: clients whose watches resume soon after an outage, and Events.
package host

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"time"
)

// interval is the average time between two connection attempts.
const interval = time.Second

// Watches returns a transport that retries lists and watches of informers until they reach the server or their context ends.
// It passes all other requests through. It is meant for rest.Config.Wrap.
//
// An informer on its own doubles its backoff after each attempt, up to a minute. After an outage it would miss changes for
// that long.
func Watches(next http.RoundTripper) http.RoundTripper { return watches{next} }

type watches struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (w watches) RoundTrip(r *http.Request) (*http.Response, error) {
	for {
		response, err := w.next.RoundTrip(r)
		if err == nil || !unsent(err) || !ofInformer(r) {
			return response, err
		}
		// Jitter spreads the attempts of many informers.
		timer := time.NewTimer(interval/2 + rand.N(interval))
		select {
		case <-timer.C:
		case <-r.Context().Done():
			timer.Stop()
			return nil, err
		}
	}
}

// unsent reports whether a request was not sent because dialing failed.
func unsent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// ofInformer reports whether a request is a watch or a list of an informer, which sets resourceVersion.
func ofInformer(r *http.Request) bool {
	query := r.URL.Query()
	return r.Method == http.MethodGet && (query.Has("watch") || query.Has("resourceVersion"))
}
