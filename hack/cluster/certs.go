//go:build linux

package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"
)

// frontProxyName is the name of the client certificate of kube-apiserver. Aggregated servers accept user headers only
// from this name.
const frontProxyName = "front-proxy-client"

// lifetime of every certificate. A test cluster is not meant to live long enough to renew them.
const lifetime = 365 * 24 * time.Hour

// pair is a certificate and its private key, both in PEM.
type pair struct{ cert, key []byte }

// authority signs certificates.
type authority struct {
	pair
	x509 *x509.Certificate
	key  crypto.Signer
}

// credentials is all key material of a cluster. The three authorities are separate, as in clusters of kubeadm: a client
// certificate of one is invalid for the others.
type credentials struct {
	ca, frontProxyCA, etcdCA                   pair
	apiServer, frontProxyClient, etcd          pair
	etcdClient, admin, controllerManager       pair
	scheduler, proxy, coreDNS                  pair
	kubelet, kubeletServer, kubeletClient      pair
	serviceAccountKey, serviceAccountPublicKey []byte
}

// newCredentials creates the key material for a cluster whose kube-apiserver listens on address and has service, the first
// address of the service range, in the cluster.
func newCredentials(address, service netip.Addr, now time.Time) (*credentials, error) {
	ca, err := newAuthority("kubernetes-ca", now)
	if err != nil {
		return nil, err
	}
	frontProxyCA, err := newAuthority("front-proxy-ca", now)
	if err != nil {
		return nil, err
	}
	etcdCA, err := newAuthority("etcd-ca", now)
	if err != nil {
		return nil, err
	}
	c := &credentials{ca: ca.pair, frontProxyCA: frontProxyCA.pair, etcdCA: etcdCA.pair}

	server := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	client := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	loopback := net.IPv4(127, 0, 0, 1)
	for _, leaf := range []struct {
		into    *pair
		issuer  *authority
		request x509.Certificate
	}{
		{&c.apiServer, ca, x509.Certificate{
			Subject: pkix.Name{CommonName: "kube-apiserver"}, ExtKeyUsage: server,
			IPAddresses: []net.IP{address.AsSlice(), service.AsSlice()},
			DNSNames: []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc",
				"kubernetes.default.svc.cluster.local"},
		}},
		{&c.admin, ca, x509.Certificate{
			Subject: pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}}, ExtKeyUsage: client,
		}},
		{&c.controllerManager, ca, x509.Certificate{
			Subject: pkix.Name{CommonName: "system:kube-controller-manager"}, ExtKeyUsage: client,
		}},
		{&c.scheduler, ca, x509.Certificate{
			Subject: pkix.Name{CommonName: "system:kube-scheduler"}, ExtKeyUsage: client,
		}},
		{&c.proxy, ca, x509.Certificate{
			Subject: pkix.Name{CommonName: "system:kube-proxy"}, ExtKeyUsage: client,
		}},
		{&c.coreDNS, ca, x509.Certificate{
			Subject: pkix.Name{CommonName: "system:coredns"}, ExtKeyUsage: client,
		}},
		{&c.kubelet, ca, x509.Certificate{
			Subject:     pkix.Name{CommonName: "system:node:" + nodeName, Organization: []string{"system:nodes"}},
			ExtKeyUsage: client,
		}},
		{&c.kubeletServer, ca, x509.Certificate{
			Subject: pkix.Name{CommonName: nodeName}, ExtKeyUsage: server,
			IPAddresses: []net.IP{address.AsSlice()}, DNSNames: []string{nodeName},
		}},
		// How kube-apiserver calls the kubelet: for logs and exec.
		{&c.kubeletClient, ca, x509.Certificate{
			Subject:     pkix.Name{CommonName: "kube-apiserver-kubelet-client", Organization: []string{"system:masters"}},
			ExtKeyUsage: client,
		}},
		{&c.frontProxyClient, frontProxyCA, x509.Certificate{
			Subject: pkix.Name{CommonName: frontProxyName}, ExtKeyUsage: client,
		}},
		// etcd uses the one certificate to serve clients and, as its own peer, in both directions.
		{&c.etcd, etcdCA, x509.Certificate{
			Subject: pkix.Name{CommonName: "etcd"}, ExtKeyUsage: slices.Concat(server, client),
			IPAddresses: []net.IP{loopback}, DNSNames: []string{"localhost"},
		}},
		{&c.etcdClient, etcdCA, x509.Certificate{
			Subject: pkix.Name{CommonName: "kube-apiserver-etcd-client"}, ExtKeyUsage: client,
		}},
	} {
		if *leaf.into, err = leaf.issuer.issue(leaf.request, now); err != nil {
			return nil, err
		}
	}
	c.serviceAccountKey, c.serviceAccountPublicKey, err = newServiceAccountKey()
	return c, err
}

// files returns the PEM files of the programs; kubeconfigs contain the other pairs. The keys of the front-proxy and etcd
// authorities are in no file, because they sign nothing later.
func (c *credentials) files() map[string][]byte {
	return map[string][]byte{
		"ca.crt":                 c.ca.cert,
		"ca.key":                 c.ca.key,
		"front-proxy-ca.crt":     c.frontProxyCA.cert,
		"front-proxy-client.crt": c.frontProxyClient.cert,
		"front-proxy-client.key": c.frontProxyClient.key,
		"etcd-ca.crt":            c.etcdCA.cert,
		"etcd.crt":               c.etcd.cert,
		"etcd.key":               c.etcd.key,
		"etcd-client.crt":        c.etcdClient.cert,
		"etcd-client.key":        c.etcdClient.key,
		"kube-apiserver.crt":     c.apiServer.cert,
		"kube-apiserver.key":     c.apiServer.key,
		"kubelet.crt":            c.kubeletServer.cert,
		"kubelet.key":            c.kubeletServer.key,
		"kubelet-client.crt":     c.kubeletClient.cert,
		"kubelet-client.key":     c.kubeletClient.key,
		"service-account.key":    c.serviceAccountKey,
		"service-account.pub":    c.serviceAccountPublicKey,
	}
}

func newAuthority(commonName string, now time.Time) (*authority, error) {
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: commonName},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	p, cert, key, err := sign(template, nil, now)
	if err != nil {
		return nil, err
	}
	return &authority{pair: p, x509: cert, key: key}, nil
}

// issue signs a certificate for the names, addresses and usages of request.
func (a *authority) issue(request x509.Certificate, now time.Time) (pair, error) {
	request.KeyUsage = x509.KeyUsageDigitalSignature
	p, _, _, err := sign(&request, a, now)
	return p, err
}

// sign creates a key and certifies it by issuer, or by itself without issuer.
func sign(template *x509.Certificate, issuer *authority, now time.Time) (pair, *x509.Certificate, crypto.Signer, error) {
	fail := func(err error) (pair, *x509.Certificate, crypto.Signer, error) {
		return pair{}, nil, nil, fmt.Errorf("create the certificate of %q: %w", template.Subject.CommonName, err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fail(err)
	}
	// Slightly in the past, for clients with a slow clock.
	template.NotBefore, template.NotAfter = now.Add(-5*time.Minute), now.Add(lifetime)
	parent, signer := template, crypto.Signer(key)
	if issuer != nil {
		parent, signer = issuer.x509, issuer.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return fail(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return fail(err)
	}
	keyPEM, err := privateKeyPEM(key)
	if err != nil {
		return fail(err)
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return pair{cert: certPEM, key: keyPEM}, cert, key, nil
}

// newServiceAccountKey makes the key that signs service-account tokens. It is RSA because every verifier of tokens
// supports RS256, which the OpenID specification makes mandatory.
func newServiceAccountKey() (private, public []byte, err error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, nil, fmt.Errorf("create the service-account key: %w", err)
	}
	private, err = privateKeyPEM(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encode the service-account key: %w", err)
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, nil, fmt.Errorf("encode the public service-account key: %w", err)
	}
	return private, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), nil
}

func privateKeyPEM(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}
