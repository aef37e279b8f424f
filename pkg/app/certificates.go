package app

import (
	"context"
	"fmt"
	"net"
	"time"

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
}

// certificates is the module that issues the certificates of this replica, and maintains the authority in APIServices.
type certificates struct {
	lifecycle.Tasks
	*certs.Manager
	bundles *certs.CABundles
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

// Start waits until there are certificates.
func (m *certificates) Start(ctx context.Context, fail func(error)) error {
	m.Begin(ctx, fail)
	if err := m.Init(ctx, m.Manager.Start); err != nil {
		return fmt.Errorf("issue certificates: %w", err)
	}
	m.Run(m.bundles.Run)
	return nil
}
