// Command pebble runs Pebble, a small ACME server for tests, until its input ends. Every name resolves to the address of this machine at which it
// listens.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"flag"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"
	"github.com/miekg/dns"
)

func main() {
	address := flag.String("address", "127.0.0.1", "IPv4 address of this machine.")
	httpPort := flag.Int("http-port", 80, "Port at which names are validated by HTTP-01.")
	tlsPort := flag.Int("tls-port", 443, "Port at which names are validated by TLS-ALPN-01.")
	validity := flag.Duration("validity", 24*time.Hour, "Validity of certificates.")
	blocked := flag.String("blocked", "", "Domain whose names are refused.")
	flag.Parse()
	ip := net.ParseIP(*address).To4()
	if ip == nil {
		log.Fatalf("-address %q is not an IPv4 address", *address)
	}
	if err := run(ip, *httpPort, *tlsPort, *validity, *blocked); err != nil {
		log.Fatal(err)
	}
}

func run(ip net.IP, httpPort, tlsPort int, validity time.Duration, blocked string) error {
	// Validations begin at once.
	if err := os.Setenv("PEBBLE_VA_NOSLEEP", "1"); err != nil {
		return err
	}
	resolver, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	names := &dns.Server{Listener: resolver, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, query *dns.Msg) { resolve(w, query, ip) })}
	go func() { log.Fatal(names.ActivateAndServe()) }()

	logger, store := log.New(os.Stderr, "pebble ", log.LstdFlags), db.NewMemoryStore()
	if blocked != "" {
		if err := store.AddBlockedDomain(blocked); err != nil {
			return err
		}
	}
	profiles := map[string]ca.Profile{"default": {Description: "default", ValidityPeriod: uint64(validity.Seconds())}}
	authority := ca.New(logger, store, "", "ecdsa", 0, 1, profiles)
	validator := va.New(logger, httpPort, tlsPort, true, resolver.Addr().String(), store)
	front := wfe.New(logger, store, validator, authority, []string{"pebble.example"}, true, false, 1, 1)

	certificate, bundle, err := selfSigned(ip)
	if err != nil {
		return err
	}
	listener, err := tls.Listen("tcp", net.JoinHostPort(ip.String(), "0"), &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/", front.Handler())
	mux.Handle("/roots/", front.ManagementHandler())
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	go func() { log.Fatal(server.Serve(listener)) }()

	address := "https://" + listener.Addr().String()
	err = json.NewEncoder(os.Stdout).Encode(map[string]string{"directory": address + wfe.DirectoryPath, "bundle": bundle, "root": address + wfe.RootCertPath + "0"})
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// resolve answers a DNS query: every name has the same IPv4 address.
func resolve(w dns.ResponseWriter, query *dns.Msg, ip net.IP) {
	response := new(dns.Msg).SetReply(query)
	for _, q := range query.Question {
		if q.Qtype == dns.TypeA {
			response.Answer = append(response.Answer, &dns.A{Hdr: dns.RR_Header{Name: q.Name, Rrtype: q.Qtype, Class: dns.ClassINET, Ttl: 1}, A: ip})
		}
	}
	if err := w.WriteMsg(response); err != nil {
		log.Print(err)
	}
}

// selfSigned returns the certificate of the ACME server, and the same in PEM.
func selfSigned(ip net.IP) (tls.Certificate, string, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, "", err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{ip}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, "", err
	}
	bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, string(bundle), nil
}
