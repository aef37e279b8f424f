package main

import (
	"io"
	"net/http"
	"strings"
)

// relayPath is the one path on which a CloudEvent is not for the application.
const relayPath = "/relay"

// relay has the application, from where it runs, send the request on to the URL that the query parameter to names,
// and answers what that answers: 502 with the error if nothing does. The parameter host replaces the host name.
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
	_, _ = io.Copy(w, response.Body) // ends early when either side went away
}
