// Package certs issues the certificates of an installation without external ones. All replicas share a certificate
// authority, which is stored in a Secret of the system namespace. Each replica issues its certificates itself, in memory,
// and renews them after two thirds of their validity. New certificates and authorities require no restart.
//
// The authority rotates after two thirds of its validity, and when an operator requests it:
//
//	kubectl -n knative-system annotate --overwrite secret knative-apiserver-ca knative-apiserver/rotate-ca="$(date)"
//
// A rotation has three steps, so that no client ever meets a certificate that it does not trust:
//
//  1. the next authority is created, and trusted by replicas and, through caBundle of the APIServices, by the host cluster;
//  2. after Options.Settle, it signs, and all certificates are reissued; the previous authority is still trusted;
//  3. after another Options.Settle, the previous authority is dropped.
//
// The Secret holds the entire state of a rotation, so that any replica can continue a rotation that another one began.
//
// Gateways that run alone read no Secret through the API: the leader keeps the certificate of all gateways in the Secret
// knative-gateway-certificate, which kubelets mount into their Pods. It identifies a gateway, and nothing else.
//
// Members of etcd read their authority only at startup. Therefore they have a separate one in the Secret knative-apiserver-etcd-ca, which is
// valid for ten years. hack/rotate-etcd-ca.sh replaces it: it adds next.crt and next.key, restarts the replicas one by one, moves them to
// tls.crt and tls.key without the former authority in ca.crt, which takes effect in all certificates at once, and restarts the replicas again.
package certs

import (
	"context"
	"crypto/x509"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/metrics"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// PeerName is the DNS name in the peer certificates of all replicas, regardless of their addresses.
const PeerName = "knative-apiserver-peers"

// GatewayName is the DNS name in the certificate that all gateways without permission to read the authority share.
const GatewayName = "knative-gateways"

// Options configure a Manager. Zero values have the defaults in brackets.
type Options struct {
	// Client is a client of the host cluster that may write regardless of leadership.
	Client kubernetes.Interface
	// Namespace is the namespace of the Secrets and the Service.
	Namespace string
	// ClusterDomain is the DNS domain of the cluster, such as cluster.local.
	ClusterDomain string
	// SecretName is the name of the Secret of the authority [knative-apiserver-ca].
	SecretName string
	// EtcdSecretName is the name of the Secret of the authority for etcd [knative-apiserver-etcd-ca].
	EtcdSecretName string
	// GatewaySecretName is the name of the Secret with the certificate of gateways that cannot read the authority
	// [knative-gateway-certificate].
	GatewaySecretName string
	// Service is the name of the Service that APIServices refer to [knative-apiserver].
	Service string
	// PodName and PeerService, a headless Service, form the DNS name of this replica. Empty if there are no peers.
	PodName, PeerService string
	// IPs are the addresses of this replica. Nil elements are ignored.
	IPs []net.IP
	// Validity is the validity of an authority [1 year].
	Validity time.Duration
	// LeafValidity is the validity of a certificate that the authority issues [1 week].
	LeafValidity time.Duration
	// EtcdValidity is the validity of the authority for etcd [10 years].
	EtcdValidity time.Duration
	// Settle is the time for all replicas and clients to observe a step of a rotation [2 minutes].
	Settle time.Duration
	// Leading reports whether this replica may advance a rotation [always].
	Leading func() bool
	// Register registers metrics. Nil disables them.
	Register func(...metrics.Registerable)
	// Clock returns the time [the system clock].
	Clock clock.WithTicker
	// Logger receives messages for operators.
	Logger klog.Logger
}

func (o Options) withDefaults() Options {
	text := func(value *string, otherwise string) {
		if *value == "" {
			*value = otherwise
		}
	}
	duration := func(value *time.Duration, otherwise time.Duration) {
		if *value == 0 {
			*value = otherwise
		}
	}
	const day = 24 * time.Hour
	text(&o.SecretName, "knative-apiserver-ca")
	text(&o.EtcdSecretName, "knative-apiserver-etcd-ca")
	text(&o.GatewaySecretName, "knative-gateway-certificate")
	text(&o.Service, "knative-apiserver")
	duration(&o.Validity, 365*day)
	duration(&o.LeafValidity, 7*day)
	duration(&o.EtcdValidity, 3650*day)
	duration(&o.Settle, 2*time.Minute)
	o.IPs = slices.DeleteFunc(slices.Clone(o.IPs), func(ip net.IP) bool { return ip == nil })
	if o.Leading == nil {
		o.Leading = func() bool { return true }
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	return o
}

// Manager issues this replica's certificates and manages the authority that signs them.
type Manager struct {
	options  Options
	keeper   *keeper
	expiries *metrics.GaugeVec
	ready    chan struct{}
	running  sync.WaitGroup

	// current is nil until the first certificates are issued.
	current atomic.Pointer[issued]

	listeners listeners // of the serving certificate

	mu      sync.Mutex
	bundles *CABundles // guarded by mu
	changed []func()   // guarded by mu
}

// issued is an immutable snapshot of a replica's certificates.
type issued struct {
	// signer issued serving and peer.
	signer        *authority
	serving, peer *leaf
	// trusted and bundle are the authorities to trust.
	trusted *x509.CertPool
	bundle  []byte
}

// New returns a Manager. It does nothing before Start.
func New(options Options) (*Manager, error) {
	if options.Client == nil || options.Namespace == "" || options.ClusterDomain == "" {
		return nil, errors.New("a client of the host cluster, a namespace and a cluster domain are required")
	}
	options = options.withDefaults()
	m := &Manager{options: options, expiries: newExpiries(options.Register), ready: make(chan struct{})}
	m.keeper = &keeper{
		client: options.Client, namespace: options.Namespace, name: options.SecretName,
		clock: options.Clock, logger: options.Logger,
		rotation: rotation{name: "knative-apiserver-ca", validity: options.Validity, settle: options.Settle},
		rotates:  options.Leading,
		known:    m.known,
		apply:    m.apply,
	}
	return m, nil
}

// Start waits until the first certificates are issued, which requires the host cluster, or returns an error when ctx is canceled. It
// keeps the certificates current until ctx is canceled; see Wait. It may be called once.
func (m *Manager) Start(ctx context.Context) error {
	m.running.Go(func() { m.keeper.run(ctx) })
	select {
	case <-m.ready:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Wait waits for the goroutines of Start and WriteEtcdFiles to stop, which they do when their contexts end.
func (m *Manager) Wait() { m.running.Wait() }

// Bundle returns all trusted authorities in PEM, the signer first. It returns nil until Start has returned.
func (m *Manager) Bundle() []byte {
	if held := m.current.Load(); held != nil {
		return held.bundle
	}
	return nil
}

// Subscribe makes the Manager call changed, from one goroutine, after each change of the bundle. changed must not block.
func (m *Manager) Subscribe(changed func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.changed = append(m.changed, changed)
}

// known reports whether all managed APIServices trust the bundle of s.
func (m *Manager) known(s *state) bool {
	m.mu.Lock()
	bundles := m.bundles
	m.mu.Unlock()
	return bundles == nil || bundles.have(s.bundle())
}

// apply trusts the authorities in s, and reissues certificates if the signer changed or they are due. It returns the next
// renewal time.
func (m *Manager) apply(s *state, now time.Time) (time.Time, error) {
	held := m.current.Load()
	next := &issued{signer: s.signer, trusted: x509.NewCertPool(), bundle: s.bundle()}
	for _, c := range s.trusted {
		next.trusted.AddCert(c)
	}
	if held != nil && held.signer.cert.Equal(s.signer.cert) && now.Before(held.serving.renew) {
		next.serving, next.peer = held.serving, held.peer
	} else if err := m.issue(next, now); err != nil {
		return time.Time{}, err
	}
	m.current.Store(next)

	m.expiries.WithLabelValues("ca").Set(seconds(s.signer.cert.NotAfter))
	m.expiries.WithLabelValues("serving").Set(seconds(next.serving.tls.Leaf.NotAfter))
	m.expiries.WithLabelValues("peer").Set(seconds(next.peer.tls.Leaf.NotAfter))

	m.notify(held == nil || held.serving != next.serving, held == nil || string(held.bundle) != string(next.bundle))
	if held == nil {
		close(m.ready)
	}
	return next.serving.renew, nil
}

// issue issues both certificates, with keys that never leave this process.
func (m *Manager) issue(into *issued, now time.Time) error {
	key, err := newKey()
	if err != nil {
		return err
	}
	into.serving, err = into.signer.issue(names{
		dns:    m.servingNames(),
		usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, m.options.LeafValidity, key, now)
	if err != nil {
		return err
	}
	if key, err = newKey(); err != nil {
		return err
	}
	into.peer, err = into.signer.issue(m.peerNames(PeerName), m.options.LeafValidity, key, now)
	return err
}

// notify notifies the listeners of the serving certificate and of the bundle.
func (m *Manager) notify(serving, bundle bool) {
	m.mu.Lock()
	bundles, changed := m.bundles, m.changed
	m.mu.Unlock()
	if serving {
		m.listeners.notify()
	}
	if !bundle {
		return
	}
	if bundles != nil {
		bundles.enqueueAll()
	}
	for _, call := range changed {
		call()
	}
}
