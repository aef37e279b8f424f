package apiserver

import (
	"net/http"
	"strings"
)

// serveCurrentOpenAPI responds to a request for an OpenAPI document of an earlier hash with the current document. The library
// redirects to it, but kube-aggregator does not follow redirects and would respond with status 502 until it refreshes the list
// of documents, so that kubectl explain and apply would fail after an upgrade.
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

// unlessRedirected passes a response through unless it is a redirect, which it discards.
type unlessRedirected struct {
	http.ResponseWriter
	redirected bool
}

// WriteHeader implements http.ResponseWriter.
func (w *unlessRedirected) WriteHeader(code int) {
	if code/100 == 3 && code != http.StatusNotModified {
		w.redirected = true
		return
	}
	w.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (w *unlessRedirected) Write(b []byte) (int, error) {
	if w.redirected {
		return len(b), nil
	}
	return w.ResponseWriter.Write(b)
}
