package app

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/app/lifecycle"
	"github.com/knative-apiserver/knative-apiserver/pkg/certs"
	"github.com/knative-apiserver/knative-apiserver/pkg/certs/acmecerts"
	"github.com/knative-apiserver/knative-apiserver/pkg/certs/hostcerts"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/certmanager"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/hosttls"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/peer"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// receivePatience bounds the time that a gateway waits for certificates of another replica before it accepts requests.
const receivePatience = 10 * time.Second

// hostCertificates is the module of the certificates of public host names. It has either a provisioner or a receiver.
type hostCertificates struct {
	lifecycle.Tasks
	hosttls.Certificates
	authority   *certs.HostAuthority
	provisioner *hostcerts.Provisioner
	receiver    *hostcerts.Receiver
	// certManager writes Certificates of cert-manager; manager is the same with a host cluster. Nil for a receiver.
	certManager hosttls.Manager
	manager     *certmanager.Manager
}

// hostCertificatesOptions are the dependencies of a replica that provides certificates.
type hostCertificatesOptions struct {
	authority certs.HostOptions
	// client may read Secrets, and write the ones of acmecerts.SecretNames in namespace.
	client        kubernetes.Interface
	namespace     string
	clusterDomain string
	settings      *settings.Store
	registry      metricsRegistry
	store         hostcerts.Store
}

// newHostCertificates returns the module of a replica that provides certificates.
func newHostCertificates(ctx context.Context, o hostCertificatesOptions) *hostCertificates {
	logger := klog.FromContext(ctx).WithName("host-certificates")
	o.authority.Logger = logger
	authority := certs.NewHostAuthority(o.authority)
	provisioner := hostcerts.NewProvisioner(hostcerts.Options{
		Authority: authority,
		ReadSecret: func(ctx context.Context, key types.NamespacedName) (*corev1.Secret, error) {
			return o.client.CoreV1().Secrets(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
		},
		ACME: acmecerts.New(acmecerts.Options{
			Client: o.client, Namespace: o.namespace, ClusterDomain: o.clusterDomain, Leading: o.authority.Leading,
			Config: func() acmecerts.Config { return acmecerts.Config(o.settings.Get().Network.ACME) },
			Clock:  clock.RealClock{}, Logger: logger,
		}),
		Store: o.store, Clock: clock.RealClock{}, Logger: logger, Register: o.registry.MustRegister,
	})
	return &hostCertificates{Certificates: provisioner, authority: authority, provisioner: provisioner}
}

// newReceivedCertificates returns the module of a gateway that receives certificates from the replicas that may lead.
func newReceivedCertificates(ctx context.Context, from *replica, store hostcerts.Store) *hostCertificates {
	receiver := hostcerts.NewReceiver(hostcerts.ReceiverOptions{
		Connect: func(ctx context.Context, read func(io.Reader) error) error {
			return from.callRegistrars(ctx, peer.Call{Method: http.MethodGet, Path: "/" + hostcerts.Element, Read: read})
		},
		Store: store, Clock: clock.RealClock{}, Logger: klog.FromContext(ctx).WithName("host-certificates"),
	})
	return &hostCertificates{Certificates: receiver, receiver: receiver}
}

// newHostCertificates returns the module for a replica of the host cluster. Gateways that only read receive certificates. A replica with
// controllers alone serves no HTTPS itself.
func (a *aggregated) newHostCertificates(ctx context.Context, store hostcerts.Store) (*hostCertificates, error) {
	if a.replica != nil && a.Replica.ReadOnly {
		return newReceivedCertificates(ctx, a.replica, store), nil
	}
	client, err := dynamic.NewForConfig(a.guarded(a.builtIn))
	if err != nil {
		return nil, fmt.Errorf("create client of cert-manager's Certificates: %w", err)
	}
	manager, err := certmanager.New(client, klog.FromContext(ctx).WithName("cert-manager"))
	if err != nil {
		return nil, err
	}
	m := newHostCertificates(ctx, hostCertificatesOptions{
		authority: certs.HostOptions{Client: a.host, Namespace: a.API.SystemNamespace, Leading: a.leading()},
		client:    a.host, namespace: a.API.SystemNamespace, clusterDomain: a.ClusterDomain, settings: a.settings, registry: a.registry, store: store,
	})
	m.certManager, m.manager = manager, manager
	if a.replica != nil && a.Replica.Leads {
		a.replica.server.HandleAll(hostcerts.Element, m.provisioner)
	}
	return m, nil
}

// newHostCertificates returns the module for a standalone server.
func (s *standalone) newHostCertificates(ctx context.Context, core *coreKinds, store hostcerts.Store) *hostCertificates {
	m := newHostCertificates(ctx, hostCertificatesOptions{
		authority: certs.HostOptions{Dir: filepath.Join(s.API.DataDir, "pki")},
		client:    core.kubernetes, namespace: SystemNamespace, clusterDomain: s.ClusterDomain, settings: s.settings, registry: s.registry, store: store,
	})
	m.certManager = certmanager.Standalone{}
	return m
}

// Name implements lifecycle.Module.
func (*hostCertificates) Name() string { return "host certificates" }

// Start implements lifecycle.Module.
func (m *hostCertificates) Start(ctx context.Context, fail func(error)) error {
	m.Begin(ctx, fail)
	if m.receiver != nil {
		m.Run(m.receiver.Run)
		return nil
	}
	m.Run(m.authority.Run)
	m.Run(m.provisioner.Run)
	if m.manager != nil {
		m.Run(m.manager.Run)
	}
	return nil
}

// Ready implements lifecycle.Module. A gateway without a connection to a replica with certificates becomes ready too, for requests without TLS.
func (m *hostCertificates) Ready(ctx context.Context) error {
	if m.receiver == nil {
		return nil
	}
	timer := time.NewTimer(receivePatience)
	defer timer.Stop()
	select {
	case <-m.receiver.Synced():
	case <-timer.C:
		klog.FromContext(ctx).Info("No replica has sent certificates of public host names yet; continuing without them")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// Retire makes gateways receive certificates from other replicas.
func (m *hostCertificates) Retire() {
	if m.provisioner != nil {
		m.provisioner.Retire()
	}
}
