// Package reconnect has what watches an API server go on soon after that was away.
package reconnect

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"time"
)

// interval is about how long it takes from one attempt to connect to the next.
const interval = time.Second

// Watches returns a transport by which lists and watches of informers wait until they reach the server, or their context
// ends, and which leaves all other requests as they are. It is meant for rest.Config.Wrap.
//
// An informer by itself waits twice as long after each attempt, up to a minute in the end: for that long after the server is
// back it would not see what changes.
func Watches(next http.RoundTripper) http.RoundTripper { return watches{next} }

type watches struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (w watches) RoundTrip(r *http.Request) (*http.Response, error) {
	for {
		response, err := w.next.RoundTrip(r)
		if err == nil || !unsent(err) || !ofInformer(r) {
			return response, err
		}
		// Not all at once.
		timer := time.NewTimer(interval/2 + rand.N(interval))
		select {
		case <-timer.C:
		case <-r.Context().Done():
			timer.Stop()
			return nil, err
		}
	}
}

// unsent tells whether there was no connection to send a request by.
func unsent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// ofInformer tells whether a request is a watch, or a list of an informer, which says what version will do.
func ofInformer(r *http.Request) bool {
	query := r.URL.Query()
	return r.Method == http.MethodGet && (query.Has("watch") || query.Has("resourceVersion"))
}
