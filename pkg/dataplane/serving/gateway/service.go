package gateway

import (
	"net/http"
	"strings"

	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// ServeService serves a request to a Service that the API server has received, by the host of the request, which must be one of the
// Service's own Route. The API server has authorized the user: restricted callers are not checked once more.
func (g *Gateway) ServeService(w http.ResponseWriter, r *http.Request, service routing.Key, user string) {
	c := g.chain
	in := inbound{request: r, service: &service, user: user}
	c.identify(&in)
	f := c.standard(w, r)
	defer f.End()
	if rejection, malformed := unfit(r); malformed {
		c.reject(in, f, rejection)
		return
	}
	c.serve(in, f)
}

// foreign removes the header fields of a response that would concern all of the API's origin.
func foreign(header http.Header) {
	for name := range header {
		switch {
		case name == "Set-Cookie", name == "Clear-Site-Data", name == "Strict-Transport-Security", name == "Service-Worker-Allowed",
			strings.HasPrefix(name, "Access-Control-"):
			delete(header, name)
		}
	}
}
