package gateway

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/routetable"
)

const (
	// challengePath is the path of ACME challenges, followed by a token (RFC 8555 8.3). They are never redirected, because the host
	// may not have a certificate yet.
	challengePath = "/.well-known/acme-challenge/"
	// kubeProbe is the prefix of the User-Agent of the kubelet's probes.
	kubeProbe = "kube-probe/"
	// httpsPort is the port that URLs of HTTPS omit.
	httpsPort = 443
)

// redirect returns the response to a request without TLS for a host that is redirected to HTTPS. The URL has the host name of the
// Route, which the caller has looked up, so that a client cannot name another one. The status keeps the method and the body.
func (c *chain) redirect(in *inbound) *serving.Rejection {
	location := "https://" + routetable.HostName(in.host())
	if port := c.options.HTTPSPort; port != 0 && port != httpsPort {
		location += ":" + strconv.Itoa(port)
	}
	return &serving.Rejection{Status: http.StatusPermanentRedirect, Body: "the host requires HTTPS", Location: location + in.target()}
}

// host returns the Host of the request.
func (in *inbound) host() string {
	if in.head != nil {
		return string(in.head.Host)
	}
	return in.request.Host
}

// target returns path and query of the request as sent. It is empty for the target *, as in a URL without a path (RFC 9112 3.2.4).
func (in *inbound) target() string {
	target := ""
	switch {
	case in.head != nil:
		target = string(in.head.Target)
	case strings.HasPrefix(in.request.RequestURI, "/"):
		target = in.request.RequestURI
	default:
		// A target in absolute form.
		target = in.request.URL.RequestURI()
	}
	if target == "*" {
		return ""
	}
	return target
}

// challenge returns the response to an ACME challenge by HTTP-01 that a certificate authority has asked for (RFC 8555 8.3), or nil for all
// other requests.
func (c *chain) challenge(in *inbound) *serving.Rejection {
	if c.options.Certificates == nil || !c.options.Certificates.Challenged() || in.forwarded() {
		return nil
	}
	token, ok := strings.CutPrefix(in.target(), challengePath)
	if !ok {
		return nil
	}
	response, ok := c.options.Certificates.HTTPChallenge(routetable.HostName(in.host()), token)
	if !ok {
		return nil
	}
	return &serving.Rejection{Status: http.StatusOK, Body: response}
}

// isChallenge reports whether the request is for an ACME challenge: the path ends with a token in base64url.
func (in *inbound) isChallenge() bool {
	token, ok := strings.CutPrefix(in.target(), challengePath)
	return ok && token != "" && strings.IndexFunc(token, func(r rune) bool {
		return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r == '-' || r == '_')
	}) < 0
}

// isProbe reports whether the request has the header fields of a probe by the kubelet or Knative, which may not follow redirects. Any client
// may set them, which only sends its own request without TLS: all other steps are the same.
func (in *inbound) isProbe() bool {
	if in.head == nil {
		header := in.request.Header
		return strings.HasPrefix(header.Get("User-Agent"), kubeProbe) || header.Get(networkProbeField) != "" || header.Get(kubeletProbeField) != ""
	}
	return strings.HasPrefix(string(in.head.Get("user-agent")), kubeProbe) || len(in.head.Get(networkProbeField)) > 0 || len(in.head.Get(kubeletProbeField)) > 0
}
