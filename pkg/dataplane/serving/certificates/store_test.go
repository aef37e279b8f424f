package certificates

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"testing"
)

// TestGet covers the choice of a certificate: the host's own, then a wildcard's, which covers exactly one label.
func TestGet(t *testing.T) {
	own, wild, single := &tls.Certificate{}, &tls.Certificate{}, &tls.Certificate{}
	var s Store
	s.Set(map[string]*tls.Certificate{"a.example.com": own, "*.example.com": wild, "b.example.org": single})
	for host, want := range map[string]*tls.Certificate{
		"a.example.com": own, "A.Example.COM": own, "b.example.org": single,
		"c.example.com": wild, "C.EXAMPLE.com": wild,
		"example.com": nil, "x.a.example.com": nil, "a.b.example.com": nil, "c.example.org": nil,
		".example.com": nil, "*.example.com": nil, "com": nil, "": nil, ".": nil, "a.example.com.": nil,
	} {
		got, err := s.GetCertificate(&tls.ClientHelloInfo{ServerName: host})
		if got != want || err != nil {
			t.Errorf("GetCertificate of %q = %p, %v, want %p", host, got, err, want)
		}
		if s.Has(host) != (want != nil) {
			t.Errorf("Has(%q) = %v", host, s.Has(host))
		}
	}
	hello := &tls.ClientHelloInfo{ServerName: "c.example.com"}
	if n := testing.AllocsPerRun(100, func() { s.GetCertificate(hello) }); n != 0 { //nolint:errcheck // returns none
		t.Errorf("GetCertificate allocates %v times", n)
	}
}

// TestSet checks that Set replaces all certificates, keeps no reference to its argument, and that the zero value has none.
func TestSet(t *testing.T) {
	var s Store
	if s.Has("a") {
		t.Error("an empty store has a certificate")
	}
	certificates := map[string]*tls.Certificate{"a": {}}
	s.Set(certificates)
	certificates["b"] = &tls.Certificate{}
	if !s.Has("a") || s.Has("b") {
		t.Errorf("a: %v, b: %v, want only a", s.Has("a"), s.Has("b"))
	}
	s.Set(nil)
	if s.Has("a") {
		t.Error("a removed certificate still exists")
	}
}

// TestUpdate checks that Update changes the given names only.
func TestUpdate(t *testing.T) {
	var s Store
	first, second := &tls.Certificate{}, &tls.Certificate{}
	s.Update(map[string]*tls.Certificate{"a.example": first, "*.example": first, "b.example": first, "gone.example.org": nil})
	s.Update(map[string]*tls.Certificate{"a.example": second, "b.example": nil})
	for host, want := range map[string]*tls.Certificate{"a.example": second, "b.example": first, "c.example": first, "gone.example.org": nil} {
		if got := s.get(host); got != want {
			t.Errorf("%s has %p, want %p", host, got, want)
		}
	}
	s.Update(map[string]*tls.Certificate{"*.example": nil})
	if !s.Has("a.example") || s.Has("b.example") {
		t.Error("want only the certificate of a.example")
	}
}

// BenchmarkUpdate changes one certificate among 10,000.
func BenchmarkUpdate(b *testing.B) {
	var s Store
	all := map[string]*tls.Certificate{}
	for i := range 10000 {
		all[fmt.Sprintf("host-%d.example.com", i)] = &tls.Certificate{}
	}
	s.Set(all)
	for b.Loop() {
		s.Update(map[string]*tls.Certificate{"host-1.example.com": {}})
	}
}

// BenchmarkGet looks up the certificate of a host name, among few and many. Both take the same time.
func BenchmarkGet(b *testing.B) {
	for _, many := range []int{10, 10000} {
		b.Run(fmt.Sprint(many), func(b *testing.B) {
			var s Store
			all := map[string]*tls.Certificate{}
			for i := range many {
				all[fmt.Sprintf("host-%d.example.com", i)] = &tls.Certificate{}
			}
			s.Set(all)
			hello := &tls.ClientHelloInfo{ServerName: "host-7.example.com"}
			for b.Loop() {
				if certificate, err := s.GetCertificate(hello); certificate == nil || err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestUnknownName covers the alert that ends the handshake of a client that sends no server name, or an unknown one.
func TestUnknownName(t *testing.T) {
	const unrecognizedName = tls.AlertError(112)
	var s Store
	s.Set(map[string]*tls.Certificate{"a": {}})
	for _, name := range []string{"", "b"} {
		server, client := net.Pipe()
		go func() {
			defer server.Close()
			tls.Server(server, &tls.Config{GetCertificate: s.GetCertificate}).Handshake() //nolint:errcheck // the client sees the error
		}()
		err := tls.Client(client, &tls.Config{ServerName: name, InsecureSkipVerify: true}).HandshakeContext(t.Context())
		var remote *net.OpError
		if !errors.As(err, &remote) || remote.Err.Error() != unrecognizedName.Error() {
			t.Errorf("a handshake for %q ended with %v, want %v", name, err, unrecognizedName)
		}
		client.Close()
	}
}
