package main

import (
	"io"
	"net/http"
	"strings"
)

// relayPath is the only path at which a CloudEvent is not for the application.
const relayPath = "/relay"

// relay sends the request to the URL in the query parameter to, from the application's network, and returns its response, or
// 502 with the error. The parameter host replaces the Host header.
func relay(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	request, err := http.NewRequestWithContext(r.Context(), r.Method, query.Get("to"), r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	request.ContentLength = r.ContentLength
	request.Host = query.Get("host")
	request.Header = r.Header.Clone()
	request.Header.Del("Connection")
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer response.Body.Close()
	for name, values := range response.Header {
		if !strings.EqualFold(name, "Connection") {
			w.Header()[name] = values
		}
	}
	w.WriteHeader(response.StatusCode)
	_, _ = io.Copy(w, response.Body) // ends early if either side disconnected
}
