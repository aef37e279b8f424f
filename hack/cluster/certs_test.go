//go:build linux

package main

import (
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/netip"
	"slices"
	"testing"
	"time"
)

func TestCredentials(t *testing.T) {
	now := time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)
	c, err := newCredentials(netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("10.96.0.1"), now)
	if err != nil {
		t.Fatal(err)
	}
	authorities := map[string]pair{"ca": c.ca, "front-proxy-ca": c.frontProxyCA, "etcd-ca": c.etcdCA}
	server, client := x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth
	for name, test := range map[string]struct {
		pair       pair
		issuer     string
		commonName string
		groups     []string
		usages     []x509.ExtKeyUsage
		hosts      []string
	}{
		"kube-apiserver": {c.apiServer, "ca", "kube-apiserver", nil, []x509.ExtKeyUsage{server},
			[]string{"192.0.2.7", "10.96.0.1", "kubernetes.default.svc"}},
		"admin": {c.admin, "ca", "admin", []string{"system:masters"}, []x509.ExtKeyUsage{client}, nil},
		"controller manager": {c.controllerManager, "ca", "system:kube-controller-manager", nil,
			[]x509.ExtKeyUsage{client}, nil},
		"scheduler":  {c.scheduler, "ca", "system:kube-scheduler", nil, []x509.ExtKeyUsage{client}, nil},
		"kube-proxy": {c.proxy, "ca", "system:kube-proxy", nil, []x509.ExtKeyUsage{client}, nil},
		"CoreDNS":    {c.coreDNS, "ca", "system:coredns", nil, []x509.ExtKeyUsage{client}, nil},
		"kubelet": {c.kubelet, "ca", "system:node:node", []string{"system:nodes"},
			[]x509.ExtKeyUsage{client}, nil},
		"kubelet server": {c.kubeletServer, "ca", "node", nil, []x509.ExtKeyUsage{server}, []string{"192.0.2.7", "node"}},
		"kubelet client": {c.kubeletClient, "ca", "kube-apiserver-kubelet-client", []string{"system:masters"},
			[]x509.ExtKeyUsage{client}, nil},
		"front proxy": {c.frontProxyClient, "front-proxy-ca", "front-proxy-client", nil, []x509.ExtKeyUsage{client}, nil},
		"etcd":        {c.etcd, "etcd-ca", "etcd", nil, []x509.ExtKeyUsage{server, client}, []string{"127.0.0.1", "localhost"}},
		"etcd client": {c.etcdClient, "etcd-ca", "kube-apiserver-etcd-client", nil, []x509.ExtKeyUsage{client}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			loaded, err := tls.X509KeyPair(test.pair.cert, test.pair.key)
			if err != nil {
				t.Fatal(err)
			}
			cert := loaded.Leaf
			if cert.Subject.CommonName != test.commonName || !slices.Equal(cert.Subject.Organization, test.groups) {
				t.Errorf("subject is %s", cert.Subject)
			}
			if !slices.Equal(cert.ExtKeyUsage, test.usages) {
				t.Errorf("usages are %v, want %v", cert.ExtKeyUsage, test.usages)
			}
			if cert.IsCA {
				t.Error("is an authority")
			}
			for _, host := range test.hosts {
				if err := cert.VerifyHostname(host); err != nil {
					t.Error(err)
				}
			}
			for authority, ca := range authorities {
				roots := x509.NewCertPool()
				roots.AppendCertsFromPEM(ca.cert)
				for _, at := range []time.Time{now, now.Add(lifetime + time.Second), now.Add(-time.Hour)} {
					_, err := cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: at, KeyUsages: test.usages})
					if want := authority == test.issuer && at.Equal(now); (err == nil) != want {
						t.Errorf("verified against %s at %s: %v, want success %t", authority, at, err, want)
					}
				}
			}
		})
	}
}

func TestServiceAccountKeysBelongTogether(t *testing.T) {
	private, public, err := newServiceAccountKey()
	if err != nil {
		t.Fatal(err)
	}
	privateBlock, _ := pem.Decode(private)
	key, err := x509.ParsePKCS8PrivateKey(privateBlock.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	publicBlock, _ := pem.Decode(public)
	want, err := x509.ParsePKIXPublicKey(publicBlock.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if got := &key.(*rsa.PrivateKey).PublicKey; !got.Equal(want) {
		t.Error("the public key does not match the private key")
	}
}
