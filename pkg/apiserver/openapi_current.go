package apiserver

import (
	"net/http"
	"strings"
)

// serveCurrentOpenAPI answers a request for an OpenAPI document of an earlier hash with the current document.
// The library redirects to it, but kube-aggregator follows no redirect and would answer 502 until it has
// read the list of documents again, which makes kubectl explain and apply fail after an upgrade.
func serveCurrentOpenAPI(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		if !strings.HasPrefix(r.URL.Path, "/openapi/v3/") || !query.Has("hash") {
			handler.ServeHTTP(w, r)
			return
		}
		first := &unlessRedirected{ResponseWriter: w}
		handler.ServeHTTP(first, r)
		if !first.redirected {
			return
		}
		for name := range w.Header() {
			w.Header().Del(name)
		}
		query.Del("hash")
		current := r.Clone(r.Context())
		current.URL.RawQuery = query.Encode()
		handler.ServeHTTP(w, current)
	})
}

// unlessRedirected passes an answer on unless it is a redirect, which it swallows.
type unlessRedirected struct {
	http.ResponseWriter
	redirected bool
}

// WriteHeader begins the answer.
func (w *unlessRedirected) WriteHeader(code int) {
	if code/100 == 3 && code != http.StatusNotModified {
		w.redirected = true
		return
	}
	w.ResponseWriter.WriteHeader(code)
}

// Write goes on with it.
func (w *unlessRedirected) Write(b []byte) (int, error) {
	if w.redirected {
		return len(b), nil
	}
	return w.ResponseWriter.Write(b)
}
