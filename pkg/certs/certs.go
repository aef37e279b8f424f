// Package certs makes the certificates of an installation that brings none of its own. An authority in a Secret of
// the system namespace is shared by all replicas; each of them issues its certificates itself, in memory, and renews
// them after two thirds of their validity. Nothing has to be restarted for new certificates or a new authority.
//
// The authority rotates after two thirds of its validity, and where an operator asks for it:
//
//	kubectl -n knative-system annotate --overwrite secret knative-apiserver-ca knative-apiserver/rotate-ca="$(date)"
//
// A rotation has three steps, so that at no time anybody meets a certificate that it does not trust:
//
//  1. the next authority is made, and trusted by replicas and, through caBundle of the APIServices, by the host cluster;
//  2. after Options.Settle, it signs, and all certificates are issued anew; the former one is still trusted;
//  3. after Options.Settle again, the former one is dropped.
//
// All of its state is in the Secret, so that any replica goes on where another was stopped.
//
// Members of etcd read their authority when they start, and never again. So they have one of their own, which is valid
// for ten years and rotates by hand: add the certificate of a new authority to ca.crt of Secret knative-apiserver-etcd-ca
// and restart the replicas one by one; replace tls.crt and tls.key by the new authority, which takes effect at once;
// remove the old certificate from ca.crt and restart the replicas one by one again.
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

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/metrics"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// PeerName is the name that every replica's certificate for others has, whatever its address.
const PeerName = "knative-apiserver-peers"

// Options are what a Manager needs to know. What is zero gets the value in brackets.
type Options struct {
	// Client reaches the host cluster, and may write there whether or not this replica leads.
	Client kubernetes.Interface
	// Namespace is that of the Secrets, and of the Service.
	Namespace string
	// SecretName is that of the Secret of the authority [knative-apiserver-ca].
	SecretName string
	// EtcdSecretName is that of the Secret of the authority for etcd [knative-apiserver-etcd-ca].
	EtcdSecretName string
	// Service is the name of the Service that APIServices refer to [knative-apiserver].
	Service string
	// PodName and PeerService, the headless Service, are what others reach this replica by; none if it is alone.
	PodName, PeerService string
	// IPs are addresses of this replica. Those that are nil do not count.
	IPs []net.IP
	// ClusterDomain ends the names of Services [cluster.local].
	ClusterDomain string
	// Validity is that of an authority [a year].
	Validity time.Duration
	// LeafValidity is that of a certificate that the authority issues [a week].
	LeafValidity time.Duration
	// EtcdValidity is that of the authority for etcd [ten years].
	EtcdValidity time.Duration
	// Settle is how long a step of a rotation is given to be known everywhere [two minutes].
	Settle time.Duration
	// Leading tells whether this replica may go on with a rotation [always].
	Leading func() bool
	// Register is called with the metrics [nobody].
	Register func(...metrics.Registerable)
	// Clock tells the time [the system's].
	Clock clock.Clock
	// Logger takes what an operator should know.
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
	text(&o.Service, "knative-apiserver")
	text(&o.ClusterDomain, "cluster.local")
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

// Manager issues this replica's certificates, and keeps the authority that signs them.
type Manager struct {
	options  Options
	keeper   *keeper
	expiries *metrics.GaugeVec
	ready    chan struct{}
	running  sync.WaitGroup

	// current is nil until the first certificates are issued.
	current atomic.Pointer[issued]

	// mu guards what follows.
	mu        sync.Mutex
	listeners []dynamiccertificates.Listener
	bundles   *CABundles
}

// issued is what a replica has at one time. It does not change.
type issued struct {
	// signer is that of serving and peer.
	signer        *authority
	serving, peer *leaf
	// trusted and bundle are the authorities to trust.
	trusted *x509.CertPool
	bundle  []byte
}

// New returns a Manager that does nothing before Start. It fails for options that miss what cannot be guessed.
func New(options Options) (*Manager, error) {
	if options.Client == nil || options.Namespace == "" {
		return nil, errors.New("certificates need a client of the host cluster and a namespace to keep their authority in")
	}
	options = options.withDefaults()
	m := &Manager{options: options, expiries: newExpiries(options.Register), ready: make(chan struct{})}
	m.keeper = &keeper{
		client: options.Client, namespace: options.Namespace, name: options.SecretName,
		clock: options.Clock, logger: options.Logger,
		rotation: rotation{name: "knative-apiserver-ca", validity: options.Validity, settle: options.Settle},
		rotates:  options.Leading,
		known:    m.known,
		adopt:    m.adopt,
	}
	return m, nil
}

// Start returns once there are certificates, which it waits for as long as the host cluster cannot be reached, or with
// an error at the end of ctx. From then on certificates are kept current until ctx ends; see Wait. It may be called once.
func (m *Manager) Start(ctx context.Context) error {
	m.running.Go(func() { m.keeper.run(ctx) })
	select {
	case <-m.ready:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Wait returns when all that Start and WriteEtcdFiles began has ended, which it does with their contexts.
func (m *Manager) Wait() { m.running.Wait() }

// Bundle returns all authorities to trust in PEM, the one that signs first; nil before Start has returned.
func (m *Manager) Bundle() []byte {
	if held := m.current.Load(); held != nil {
		return held.bundle
	}
	return nil
}

// known tells whether the APIServices trust what s says, as far as they are ours to keep.
func (m *Manager) known(s *state) bool {
	m.mu.Lock()
	bundles := m.bundles
	m.mu.Unlock()
	return bundles == nil || bundles.have(s.bundle())
}

// adopt trusts what s says, and issues certificates where the authority is another one or they are due. It returns when
// they will be.
func (m *Manager) adopt(s *state, now time.Time) (time.Time, error) {
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

// issue makes both certificates, with keys that never leave this process.
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

// notify tells those who asked what has changed.
func (m *Manager) notify(serving, bundle bool) {
	m.mu.Lock()
	listeners, bundles := m.listeners, m.bundles
	m.mu.Unlock()
	if serving {
		for _, l := range listeners {
			l.Enqueue()
		}
	}
	if bundle && bundles != nil {
		bundles.enqueueAll()
	}
}
