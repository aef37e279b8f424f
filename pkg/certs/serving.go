package certs

import (
	"crypto/x509"
	"slices"
	"sync"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

// ServingCertificate returns the certificate of the API server, for SecureServing.ServerCert.GeneratedCert. It follows
// every renewal. Start must have returned before it is used.
func (m *Manager) ServingCertificate() dynamiccertificates.CertKeyContentProvider {
	return servingCertificate{&m.listeners, m}
}

type servingCertificate struct {
	*listeners
	m *Manager
}

// Name implements dynamiccertificates.CertKeyContentProvider.
func (s servingCertificate) Name() string { return "self-managed serving certificate" }

// CurrentCertKeyContent implements dynamiccertificates.CertKeyContentProvider.
func (s servingCertificate) CurrentCertKeyContent() (certPEM, keyPEM []byte) {
	held := s.m.current.Load()
	if held == nil {
		return nil, nil
	}
	return held.serving.certPEM, held.serving.keyPEM
}

// listeners are notified of new certificates. They are safe for concurrent use.
type listeners struct {
	mu  sync.Mutex
	all []dynamiccertificates.Listener // guarded by mu
}

// AddListener implements dynamiccertificates.Notifier.
func (l *listeners) AddListener(listener dynamiccertificates.Listener) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// notify uses the slice without the lock.
	l.all = append(slices.Clip(l.all), listener)
}

func (l *listeners) notify() {
	l.mu.Lock()
	all := l.all
	l.mu.Unlock()
	for _, listener := range all {
		listener.Enqueue()
	}
}

// servingNames returns the DNS names of the API: in the host cluster, and through a forwarded port.
func (m *Manager) servingNames() []string {
	service := m.options.Service + "." + m.options.Namespace + ".svc"
	return []string{service, service + "." + m.options.ClusterDomain, "localhost"}
}

// peerNames returns first, and the names and addresses at which peers reach this replica, in both directions.
func (m *Manager) peerNames(first string) names {
	o := m.options
	dns := []string{first}
	if o.PodName != "" && o.PeerService != "" {
		pod := o.PodName + "." + o.PeerService + "." + o.Namespace + ".svc"
		dns = append(dns, pod, pod+"."+o.ClusterDomain)
	}
	return names{
		dns:    dns,
		ips:    o.IPs,
		usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
}
