package gateway

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/certificates"
)

// TestHTTPChallenge checks that the gateway answers its ACME challenges before redirects, and that all other tokens reach the application.
func TestHTTPChallenge(t *testing.T) {
	for _, standardOnly := range []bool{false, true} {
		store := &certificates.Store{}
		b := serve(t, Options{StandardOnly: standardOnly, Certificates: store}, revision(0), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, "application")
		}))
		redirecting(b)
		store.SetHTTPChallenge("app", "token", "token.key")
		store.SetHTTPChallenge("unrouted", "token", "token.key")
		for request, want := range map[string]string{
			"GET /.well-known/acme-challenge/token HTTP/1.1\r\nHost: app":           "200 token.key",
			"GET /.well-known/acme-challenge/token HTTP/1.1\r\nHost: APP:80":        "200 token.key",
			"GET http://app/.well-known/acme-challenge/token HTTP/1.1\r\nHost: app": "200 token.key",
			"GET /.well-known/acme-challenge/other HTTP/1.1\r\nHost: app":           "200 application",
			"GET /.well-known/acme-challenge/token HTTP/1.1\r\nHost: other":         "200 application",
			"GET /.well-known/acme-challenge/token HTTP/1.1\r\nHost: unrouted":      "404",
			"GET /x/.well-known/acme-challenge/token HTTP/1.1\r\nHost: app":         "308",
		} {
			answer := talk(t, b, request+"\r\nConnection: close\r\n\r\n")
			res, err := http.ReadResponse(bufio.NewReader(strings.NewReader(answer)), nil)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(res.Body)
			res.Body.Close()
			if got := fmt.Sprintf("%d %s", res.StatusCode, strings.TrimSpace(string(body))); err != nil || !strings.HasPrefix(got, want) {
				t.Errorf("standard path only %v: %q gets %q, %v, want %q", standardOnly, request, got, err, want)
			}
		}
		store.SetHTTPChallenge("app", "", "")
		if answer := talk(t, b, "GET /.well-known/acme-challenge/token HTTP/1.1\r\nHost: app\r\nConnection: close\r\n\r\n"); !strings.Contains(answer, "application") {
			t.Errorf("after the challenge: %q", answer)
		}
	}
}

// TestTLSChallenge covers handshakes with the application protocol of TLS-ALPN-01 (RFC 8737 3): only they get the certificate of a challenge, and
// nothing is served after them.
func TestTLSChallenge(t *testing.T) {
	b, store := serveTLS(t, Options{}, http.NotFoundHandler())
	challenge := newCertificate(t, "app")
	validate := func(c *tls.Config) { c.NextProtos = []string{certificates.ProtocolChallenge} }
	if _, err := b.dialTLS(t, "app", validate); err == nil {
		t.Error("a handshake without a challenge succeeds")
	}
	store.SetTLSChallenge("app", challenge)
	conn := b.mustDialTLS(t, "APP", validate)
	state := conn.ConnectionState()
	if state.NegotiatedProtocol != certificates.ProtocolChallenge || !slices.Equal(state.PeerCertificates[0].Raw, challenge.Certificate[0]) {
		t.Errorf("negotiated %q", state.NegotiatedProtocol)
	}
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: app\r\n\r\n"); err == nil {
		if n, err := conn.Read(make([]byte, 1)); n > 0 || err == nil {
			t.Error("the connection of a challenge is served")
		}
	}
	if _, err := b.dialTLS(t, "b.test", validate); err == nil {
		t.Error("another host name has a challenge")
	}
	ordinary := b.mustDialTLS(t, "app", func(c *tls.Config) { c.NextProtos = []string{certificates.ProtocolChallenge, "http/1.1"} })
	if state := ordinary.ConnectionState(); state.NegotiatedProtocol != "http/1.1" || slices.Equal(state.PeerCertificates[0].Raw, challenge.Certificate[0]) {
		t.Errorf("a client with further protocols negotiated %q", state.NegotiatedProtocol)
	}
	store.SetTLSChallenge("app", nil)
	if _, err := b.dialTLS(t, "app", validate); err == nil {
		t.Error("the challenge remains")
	}
}
