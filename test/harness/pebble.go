package harness

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"strconv"
	"testing"
	"time"
)

var buildPebble = buildTool("pebble")

// Pebble is an ACME server.
type Pebble struct {
	// Directory is the URL of its directory, Bundle its own certificate in PEM.
	Directory string `json:"directory"`
	Bundle    string `json:"bundle"`
	// Root is the URL of the certificate of its authority.
	Root string `json:"root"`
}

// PebbleOptions configure an ACME server.
type PebbleOptions struct {
	// Address is the address of this machine at which it listens and validates names [127.0.0.1].
	Address string
	// HTTPPort and TLSPort are the ports at which it validates names.
	HTTPPort, TLSPort int
	// Validity is the validity of certificates [24 hours].
	Validity time.Duration
	// Refused is a domain whose names it refuses.
	Refused string
}

// RunPebble runs an ACME server until the test ends.
func RunPebble(t testing.TB, o PebbleOptions) *Pebble {
	t.Helper()
	p := &Pebble{}
	runTool(t, buildPebble, p, "-address", cmp.Or(o.Address, "127.0.0.1"), "-http-port", strconv.Itoa(o.HTTPPort), "-tls-port", strconv.Itoa(o.TLSPort),
		"-validity", cmp.Or(o.Validity, 24*time.Hour).String(), "-blocked", o.Refused)
	return p
}

// Roots returns the authority of the issued certificates.
func (p *Pebble) Roots(t testing.TB) *x509.CertPool {
	t.Helper()
	trusted, roots := x509.NewCertPool(), x509.NewCertPool()
	trusted.AppendCertsFromPEM([]byte(p.Bundle))
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted}, DisableKeepAlives: true}}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.Root, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil || !roots.AppendCertsFromPEM(content) {
		t.Fatalf("%s has no certificate: %q, %v", p.Root, content, err)
	}
	return roots
}
