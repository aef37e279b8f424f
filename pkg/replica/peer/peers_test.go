package peer

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// authority issues certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert, key}
}

// config returns the configuration of a replica whose certificate is for a name.
func (a *authority) config(t *testing.T, name string) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), DNSNames: []string{name}, NotBefore: a.cert.NotBefore, NotAfter: a.cert.NotAfter,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, RootCAs: pool, ClientCAs: pool}
}

// serve returns the address of a server that echoes.
func serve(t *testing.T, config *tls.Config) string {
	t.Helper()
	server := NewServer(config)
	server.Handle("echo", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s ", r.Proto, r.URL.Path)
		io.Copy(w, r.Body) //nolint:errcheck // the client sees
	}))
	return listen(t, server)
}

// listen returns the address at which a server serves until the test ends.
func listen(t *testing.T, server *Server) string {
	t.Helper()
	var listening net.ListenConfig
	listener, err := listening.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, listener, time.Second) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

// send returns the response to a request. The timeouts of a Client are shorter than a stall of a busy machine, so that requests are repeated
// after them.
func send(t *testing.T, client *Client, url string, headers ...string) (string, error) {
	t.Helper()
	var response *http.Response
	for range 5 {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader("hello"))
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		var timeout net.Error
		if response, err = client.RoundTrip(r); err == nil {
			break
		} else if !errors.As(err, &timeout) || !timeout.Timeout() {
			return "", err
		}
	}
	if response == nil {
		return "", errors.New("each request timed out")
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(response.StatusCode, " ", strings.TrimSpace(string(body))), nil
}

func TestRequests(t *testing.T) {
	a := newAuthority(t)
	address := serve(t, a.config(t, ServerName))
	client := NewClient(a.config(t, ServerName))
	defer client.CloseIdleConnections()
	for _, test := range []struct {
		url, want string
		headers   []string
	}{
		{url: "http://" + address + "/echo/a//b/../c", want: "200 HTTP/2.0 /a//b/../c hello"},
		{url: "https://" + address + "/echo/", want: "200 HTTP/2.0 / hello"},
		{url: "http://" + address + "/echo/x", headers: []string{"Connection", "Upgrade", "Upgrade", "websocket"}, want: "200 HTTP/1.1 /x hello"},
		{url: "http://" + address + "/other/", want: "404 404 page not found"},
	} {
		if got, err := send(t, client, test.url, test.headers...); err != nil || got != test.want {
			t.Errorf("%s: %q, %v, want %q", test.url, got, err, test.want)
		}
	}
}

// Only replicas are accepted as servers and clients.
func TestStrangers(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	none := ours.config(t, ServerName)
	none.Certificates = nil
	lenient := ours.config(t, ServerName)
	lenient.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return ours.config(t, ServerName), nil }
	trusting := theirs.config(t, ServerName)
	trusting.RootCAs = ours.config(t, ServerName).RootCAs
	for name, test := range map[string]struct {
		server, client *tls.Config
		ok             bool
	}{
		"replicas":                            {ours.config(t, ServerName), ours.config(t, ServerName), true},
		"a server of another name":            {ours.config(t, "other"), ours.config(t, ServerName), false},
		"a server of another authority":       {theirs.config(t, ServerName), ours.config(t, ServerName), false},
		"a client without a certificate":      {ours.config(t, ServerName), none, false},
		"a client of another authority":       {ours.config(t, ServerName), trusting, false},
		"a client that offers no certificate": {lenient, none, false},
	} {
		t.Run(name, func(t *testing.T) {
			client := NewClient(test.client)
			defer client.CloseIdleConnections()
			if got, err := send(t, client, "https://"+serve(t, test.server)+"/echo/"); (err == nil) != test.ok {
				t.Errorf("the answer is %q, %v", got, err)
			}
		})
	}
}

// An address without a listener is distinguished from a request that may have arrived.
func TestUnreachable(t *testing.T) {
	a := newAuthority(t)
	client := NewClient(a.config(t, ServerName))
	if _, err := send(t, client, "https://127.0.0.1:1/echo/"); !IsUnreachable(err) {
		t.Errorf("the error is %v", err)
	}
	if IsUnreachable(io.ErrUnexpectedEOF) {
		t.Error("a broken connection counts as unreachable")
	}
}

// Clients with a certificate for another name than the replicas' may request only the elements for all clients.
func TestOtherNames(t *testing.T) {
	a := newAuthority(t)
	server := NewServer(a.config(t, ServerName))
	answer := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "answer") })
	server.Handle("replicas", answer)
	server.HandleAll("all", answer)
	address := listen(t, server)
	replica, gateway := NewClient(a.config(t, ServerName)), NewClient(a.config(t, "gateways"))
	defer replica.CloseIdleConnections()
	defer gateway.CloseIdleConnections()
	for _, test := range []struct {
		client     *Client
		path, want string
	}{
		{replica, "/replicas", "200 answer"},
		{replica, "/all", "200 answer"},
		{gateway, "/replicas", "403 only for replicas with all permissions"},
		{gateway, "/all", "200 answer"},
		{gateway, "/other", "404 404 page not found"},
	} {
		if got, err := send(t, test.client, "https://"+address+test.path); err != nil || got != test.want {
			t.Errorf("%s: %q, %v, want %q", test.path, got, err, test.want)
		}
	}
}
