// Package host connects to an API server that other processes run: clients whose watches resume soon after an outage, and Events.
package host

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"time"

	"k8s.io/klog/v2"
)

// interval is the average time between two connection attempts.
const interval = time.Second

// Watches returns a transport that retries lists and watches of informers until a server answers them or their context ends.
// It passes all other requests through. It is meant for rest.Config.Wrap.
//
// An informer on its own doubles its backoff after each attempt, up to a minute. After an outage it would miss changes for
// that long. An API server answers 503 during an outage of an aggregated server.
func Watches(next http.RoundTripper) http.RoundTripper { return watches{next} }

type watches struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (w watches) RoundTrip(r *http.Request) (*http.Response, error) {
	for attempt := 0; ; attempt++ {
		response, err := w.next.RoundTrip(r)
		if !ofInformer(r) || !unsent(err) && !unavailable(response) {
			return response, err
		}
		if response != nil {
			response.Body.Close()
			err = errors.New(response.Status)
		}
		if attempt == 0 {
			klog.FromContext(r.Context()).Info("Failed to list or watch objects; retrying until a server answers", "path", r.URL.Path, "reason", err.Error())
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

// unavailable reports whether a response means that no server handled the request. The client handles responses with Retry-After.
func unavailable(response *http.Response) bool {
	return response != nil && response.StatusCode == http.StatusServiceUnavailable && response.Header.Get("Retry-After") == ""
}

// ofInformer reports whether a request is a watch or a list of an informer, which sets resourceVersion.
func ofInformer(r *http.Request) bool {
	query := r.URL.Query()
	return r.Method == http.MethodGet && (query.Has("watch") || query.Has("resourceVersion"))
}
