package app

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/knative-apiserver/knative-apiserver/pkg/app/lifecycle"
	"github.com/knative-apiserver/knative-apiserver/pkg/certs"
)

// CertificatesConfig configures the certificates that the server issues itself.
type CertificatesConfig struct {
	// Serving uses such a certificate for the API; otherwise they are for connections between replicas only.
	Serving bool
	// PodIP is the address of this replica, PodName the name of its Pod if it is one of several replicas.
	PodIP, PodName string
	// PeerService is the headless Service of the replicas.
	PeerService string
	// Settle is the duration of each step of a rotation of the authority.
	Settle time.Duration
	// Dir is the directory with the certificate of a gateway that cannot read the authority; empty if this replica issues its own.
	Dir string
}

// replicaCertificates is a module with the certificates of this replica.
type replicaCertificates interface {
	lifecycle.Module
	// PeerTLS returns the TLS configuration for connections between replicas, which accepts certificates for the other names too.
	PeerTLS(others ...string) *tls.Config
	ServingCertificate() dynamiccertificates.CertKeyContentProvider
}

// mountedCertificate is the module of the certificate of a gateway that cannot read the authority.
type mountedCertificate struct {
	lifecycle.Tasks
	*certs.Mounted
}

// Name implements lifecycle.Module.
func (*mountedCertificate) Name() string { return "certificate" }

// Start waits for the certificate.
func (m *mountedCertificate) Start(ctx context.Context, fail func(error)) error {
	m.Begin(ctx, fail)
	if err := m.Init(ctx, m.Mounted.Start); err != nil {
		return fmt.Errorf("read certificate: %w", err)
	}
	m.Run(m.Follow)
	return nil
}

// certificates is the module that issues the certificates of this replica, and maintains the authority in APIServices.
type certificates struct {
	lifecycle.Tasks
	*certs.Manager
	bundles *certs.CABundles
	// leads is true if this replica may lead. The leader keeps the certificate of gateways current.
	leads bool
}

// newCertificates returns the module for a server in a namespace of the host cluster. leading reports whether this replica
// writes; nil means that it is the only one.
func newCertificates(c CertificatesConfig, host *rest.Config, o certs.Options) (*certificates, error) {
	client, err := kubernetes.NewForConfig(host)
	if err != nil {
		return nil, fmt.Errorf("create client for certificates: %w", err)
	}
	objects, err := dynamic.NewForConfig(host)
	if err != nil {
		return nil, fmt.Errorf("create client for certificates: %w", err)
	}
	o.Client, o.Settle = client, c.Settle
	o.PodName, o.PeerService, o.IPs = c.PodName, c.PeerService, []net.IP{net.ParseIP(c.PodIP)}
	manager, err := certs.New(o)
	if err != nil {
		return nil, err
	}
	return &certificates{Manager: manager, bundles: manager.CABundles(objects)}, nil
}

// Name implements lifecycle.Module.
func (*certificates) Name() string { return "certificates" }

// Start waits for the certificates.
func (m *certificates) Start(ctx context.Context, fail func(error)) error {
	m.Begin(ctx, fail)
	if err := m.Init(ctx, m.Manager.Start); err != nil {
		return fmt.Errorf("issue certificates: %w", err)
	}
	m.Run(m.bundles.Run)
	if m.leads {
		m.Run(m.KeepGatewayCertificate)
	}
	return nil
}
