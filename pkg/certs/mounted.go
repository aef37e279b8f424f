package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// Mounted is the certificate of a replica in the files of a directory: tls.crt, tls.key and ca.crt. It follows changes of the files.
type Mounted struct {
	dir    string
	clock  clock.WithTicker
	logger klog.Logger

	// current is nil until the files have been read.
	current   atomic.Pointer[mounted]
	listeners listeners
}

// mounted are the contents of the files. Immutable.
type mounted struct {
	identity
	certPEM, keyPEM, caPEM []byte
}

// reread is the interval at which the files are read.
const reread = 5 * time.Second

// NewMounted returns the certificate in a directory, which Start reads.
func NewMounted(dir string, clock clock.WithTicker, logger klog.Logger) *Mounted {
	return &Mounted{dir: dir, clock: clock, logger: logger}
}

// Start waits until the files have been read, or returns an error when ctx is canceled.
func (m *Mounted) Start(ctx context.Context) error {
	ticker := m.clock.NewTicker(reread)
	defer ticker.Stop()
	for {
		err := m.read()
		if err == nil {
			return nil
		}
		m.logger.Info("Waiting for certificate", "directory", m.dir, "reason", err.Error())
		select {
		case <-ticker.C():
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		}
	}
}

// Follow follows changes of the files until ctx is canceled. The last valid certificate remains while they are not.
func (m *Mounted) Follow(ctx context.Context) {
	ticker := m.clock.NewTicker(reread)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C():
		case <-ctx.Done():
			return
		}
		if err := m.read(); err != nil {
			m.logger.Error(err, "Failed to read certificate; keeping the last one", "directory", m.dir)
		}
	}
}

// PeerTLS returns the TLS configuration for both ends of connections between replicas; see Manager.PeerTLS.
func (m *Mounted) PeerTLS(others ...string) *tls.Config {
	return peerTLS(m.clock.Now, func() *identity {
		held := m.current.Load()
		if held == nil {
			return nil
		}
		return &held.identity
	}, append([]string{PeerName}, others...))
}

// ServingCertificate returns the certificate for health checks and metrics. Start must have returned before it is used.
func (m *Mounted) ServingCertificate() dynamiccertificates.CertKeyContentProvider {
	return mountedCertificate{&m.listeners, m}
}

// read reads the files, and notifies listeners of a new certificate.
func (m *Mounted) read() error {
	next := &mounted{}
	for name, content := range map[string]*[]byte{corev1.TLSCertKey: &next.certPEM, corev1.TLSPrivateKeyKey: &next.keyPEM, bundleKey: &next.caPEM} {
		var err error
		if *content, err = os.ReadFile(filepath.Join(m.dir, name)); err != nil {
			return fmt.Errorf("read certificate: %w", err)
		}
	}
	held := m.current.Load()
	if held != nil && bytes.Equal(held.certPEM, next.certPEM) && bytes.Equal(held.keyPEM, next.keyPEM) && bytes.Equal(held.caPEM, next.caPEM) {
		return nil
	}
	// Between the replacement of two files, certificate and key differ.
	pair, err := tls.X509KeyPair(next.certPEM, next.keyPEM)
	if err != nil {
		return fmt.Errorf("parse certificate in %s: %w", m.dir, err)
	}
	next.certificate, next.trusted = &pair, x509.NewCertPool()
	if !next.trusted.AppendCertsFromPEM(next.caPEM) {
		return fmt.Errorf("parse %s: no certificate found", filepath.Join(m.dir, bundleKey))
	}
	m.current.Store(next)
	m.listeners.notify()
	return nil
}

type mountedCertificate struct {
	*listeners
	m *Mounted
}

// Name implements dynamiccertificates.CertKeyContentProvider.
func (mountedCertificate) Name() string { return "mounted certificate" }

// CurrentCertKeyContent implements dynamiccertificates.CertKeyContentProvider.
func (c mountedCertificate) CurrentCertKeyContent() (certPEM, keyPEM []byte) {
	held := c.m.current.Load()
	if held == nil {
		return nil, nil
	}
	return held.certPEM, held.keyPEM
}
