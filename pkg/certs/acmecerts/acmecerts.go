// Package acmecerts obtains the certificates of public host names from an ACME server (RFC 8555). One replica orders certificates; all
// replicas read certificates and challenges from Secrets.
package acmecerts

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/publicsuffix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/certs/hostcerts"
)

const (
	// check is the interval between checks for due orders. Changes are checked immediately.
	check = 2 * time.Second
	// patience bounds the time that requests wait for the Secrets after the first request.
	patience = 10 * time.Second
	// maxOrders bounds the orders at a time.
	maxOrders = 4
)

// The types of challenges (RFC 8555 8.3, RFC 8737).
const (
	HTTP01    = "http-01"
	TLSALPN01 = "tls-alpn-01"
)

// Config is the operator's configuration.
type Config struct {
	// Directory is the URL of the ACME server's directory. Empty disables orders.
	Directory string
	// Email is the contact of the account, or empty.
	Email string
	// AcceptTerms is true if the operator accepts the terms of service of the ACME server.
	AcceptTerms bool
	// Bundle are trusted certificates of a private ACME server in PEM. Empty trusts the system's. A private server issues certificates
	// for names that are not public too.
	Bundle string
	// Challenge is the only type of challenge to use. Empty alternates after failures.
	Challenge string
}

// problem returns the reason why a Config permits no orders, or an empty string.
func (c Config) problem() string {
	switch {
	case c.Directory == "":
		return "config-network sets no acme-directory"
	case !c.AcceptTerms:
		return "config-network must accept the terms of the ACME server by acme-accept-terms: \"true\""
	}
	return ""
}

// Options configure an Issuer. Zero values have the defaults in brackets.
type Options struct {
	// Client may read and write the Secrets of SecretNames in Namespace.
	Client    kubernetes.Interface
	Namespace string
	// Config returns the current configuration.
	Config func() Config
	// ClusterDomain is the domain of names that are never public.
	ClusterDomain string
	// Leading reports whether this replica orders certificates [always].
	Leading func() bool
	// Settle is the time for challenges to reach all gateways [2 s].
	Settle time.Duration
	// FirstRetry is the delay after the first failed order of a host name, which doubles with each further one [2 min].
	FirstRetry time.Duration
	Clock      clock.WithTicker
	Logger     klog.Logger
}

// Issuer obtains certificates. It does nothing before the first one is required.
type Issuer struct {
	options        Options
	needed, synced chan struct{}
	need, isSynced func()
	wake           chan struct{}
	// registration guards the account in use.
	registration sync.Mutex
	registered   *registered

	// mu guards the fields below.
	mu       sync.Mutex
	deadline time.Time
	changed  []func(hosts []string)
	// wanted are the required host names with their namespaces.
	wanted map[string]string
	// held are the records of host names, from the Secrets, challenges the pending ones. versions are the resource versions of the Secrets.
	held       map[string]*held
	challenges map[string]challenge
	versions   map[string]string
	// pausedUntil is the time before which there are no orders, pause its reason.
	pausedUntil time.Time
	pause       string
	// orders maps each host name with an order in progress to the step that the order waits for. latest maps each namespace to the time of
	// its last order.
	orders map[string]string
	latest map[string]time.Time
}

// New returns an Issuer.
func New(o Options) *Issuer {
	if o.Leading == nil {
		o.Leading = func() bool { return true }
	}
	if o.Settle == 0 {
		o.Settle = 2 * time.Second
	}
	if o.FirstRetry == 0 {
		o.FirstRetry = 2 * time.Minute
	}
	i := &Issuer{
		options: o, needed: make(chan struct{}), synced: make(chan struct{}), wake: make(chan struct{}, 1),
		wanted: map[string]string{}, held: map[string]*held{}, challenges: map[string]challenge{}, versions: map[string]string{},
		orders: map[string]string{}, latest: map[string]time.Time{},
	}
	i.need, i.isSynced = sync.OnceFunc(func() {
		i.mu.Lock()
		i.deadline = o.Clock.Now().Add(patience)
		i.mu.Unlock()
		close(i.needed)
	}), sync.OnceFunc(func() { close(i.synced) })
	return i
}

// Subscribe implements hostcerts.ACME.
func (i *Issuer) Subscribe(changed func(hosts []string)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.changed = append(i.changed, changed)
}

// Await implements hostcerts.ACME.
func (i *Issuer) Await(ctx context.Context) {
	i.need()
	select {
	case <-i.synced:
		return
	default:
	}
	i.mu.Lock()
	remaining := i.deadline.Sub(i.options.Clock.Now())
	i.mu.Unlock()
	if remaining <= 0 {
		return
	}
	timer := i.options.Clock.NewTimer(remaining)
	defer timer.Stop()
	select {
	case <-i.synced:
	case <-timer.C():
	case <-ctx.Done():
	}
}

// Require implements hostcerts.ACME.
func (i *Issuer) Require(host, namespace string) {
	i.mu.Lock()
	before, found := i.wanted[host]
	i.wanted[host] = namespace
	i.mu.Unlock()
	if !found || before != namespace {
		i.poke()
	}
}

// Release implements hostcerts.ACME. The certificate remains stored until it expires.
func (i *Issuer) Release(host string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.wanted, host)
}

// Certificate implements hostcerts.ACME.
func (i *Issuer) Certificate(host string) (*tls.Certificate, hostcerts.State) {
	config := i.options.Config()
	err := i.orderable(host, config)
	i.mu.Lock()
	defer i.mu.Unlock()
	now := i.options.Clock.Now()
	h := i.held[host]
	var s hostcerts.State
	if h != nil && h.certificate != nil {
		s.Ready, s.Outdated = true, !now.Before(h.certificate.Leaf.NotAfter)
		if s.Outdated {
			s.Problem = "the certificate expired at " + h.certificate.Leaf.NotAfter.UTC().Format(time.RFC3339) + "; "
		}
	}
	problem := config.problem()
	switch stage, ordered := i.orders[host]; {
	case s.Ready && !s.Outdated && h.Problem == "":
		return h.certificate, s
	case err != nil:
		s.Problem, s.Failed = s.Problem+err.Error(), true
	case problem != "":
		s.Problem, s.Failed = s.Problem+problem, true
	case h != nil && h.Problem != "":
		s.Problem += fmt.Sprintf("%s; retrying at %s", h.Problem, h.Retry.UTC().Format(time.RFC3339))
		s.Failed = true
	case now.Before(i.pausedUntil):
		s.Problem += i.pause
	case ordered:
		s.Problem += stage
	default:
		s.Problem += "an order at the ACME server is due"
	}
	if h == nil {
		return nil, s
	}
	return h.certificate, s
}

// Challenge implements hostcerts.ACME.
func (i *Issuer) Challenge(host string) *hostcerts.Challenge {
	i.mu.Lock()
	defer i.mu.Unlock()
	c, found := i.challenges[host]
	if !found {
		return nil
	}
	return &hostcerts.Challenge{Token: c.Token, Response: c.Response, TLS: c.Type == TLSALPN01}
}

// orderable returns the reason why ACME cannot issue a certificate for a host name, or nil.
func (i *Issuer) orderable(host string, config Config) error {
	if strings.HasPrefix(host, "*.") {
		return errors.New("ACME issues certificates of wildcards by DNS challenges only, which are not supported")
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return errors.New("the host must be a name, not an address")
	}
	if domain := i.options.ClusterDomain; domain != "" && (host == domain || strings.HasSuffix(host, "."+domain)) {
		return fmt.Errorf("names of the cluster domain %q are not public", domain)
	}
	suffix, icann := publicsuffix.PublicSuffix(host)
	if config.Bundle == "" && (host == suffix || !icann && !strings.Contains(suffix, ".")) {
		return fmt.Errorf("the name %q is not below a public domain, so that no public ACME server issues a certificate", host)
	}
	return nil
}

// setStage sets the step that the order of a host name waits for. An empty stage ends the order.
func (i *Issuer) setStage(host, stage string) {
	i.mu.Lock()
	if stage == "" {
		delete(i.orders, host)
	} else {
		i.orders[host] = stage
	}
	i.mu.Unlock()
	i.notify([]string{host})
}

// notify calls the subscribers.
func (i *Issuer) notify(hosts []string) {
	if len(hosts) == 0 {
		return
	}
	i.mu.Lock()
	changed := i.changed
	i.mu.Unlock()
	for _, call := range changed {
		call(hosts)
	}
}

// poke makes Run check for due orders.
func (i *Issuer) poke() {
	select {
	case i.wake <- struct{}{}:
	default:
	}
}

// Run follows the Secrets, and orders certificates while this replica leads, from the first required one on, until ctx is canceled.
func (i *Issuer) Run(ctx context.Context) {
	select {
	case <-i.needed:
	case <-ctx.Done():
		return
	}
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { i.follow(ctx) })
	select {
	case <-i.synced:
	case <-ctx.Done():
		return
	}
	ticker := i.options.Clock.NewTicker(check)
	defer ticker.Stop()
	for {
		if i.options.Leading() {
			for host, config := "", i.options.Config(); ; {
				if host = i.next(config); host == "" {
					break
				}
				running.Go(func() { i.order(ctx, host, config) })
			}
		}
		select {
		case <-i.wake:
		case <-ticker.C():
		case <-ctx.Done():
			return
		}
	}
}

// next begins the next order, if one is due. Of several, it prefers the namespace with the fewest orders in progress, then the one whose
// last order is the longest ago, so that no namespace delays the others.
func (i *Issuer) next(config Config) (host string) {
	if config.problem() != "" {
		return ""
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	now := i.options.Clock.Now()
	if len(i.orders) >= maxOrders || now.Before(i.pausedUntil) {
		return ""
	}
	active := map[string]int{}
	for ordered := range i.orders {
		active[i.wanted[ordered]]++
	}
	better := func(a, b string) bool {
		x, y := i.wanted[a], i.wanted[b]
		switch {
		case active[x] != active[y]:
			return active[x] < active[y]
		case !i.latest[x].Equal(i.latest[y]):
			return i.latest[x].Before(i.latest[y])
		}
		return a < b
	}
	for name := range i.wanted {
		if _, ordered := i.orders[name]; !ordered && i.due(name, now, config) && (host == "" || better(name, host)) {
			host = name
		}
	}
	if host == "" {
		return ""
	}
	i.orders[host] = "creating an order at the ACME server"
	used := map[string]bool{}
	for _, namespace := range i.wanted {
		used[namespace] = true
	}
	maps.DeleteFunc(i.latest, func(namespace string, _ time.Time) bool { return !used[namespace] })
	i.latest[i.wanted[host]] = now
	return host
}

// due reports whether a host name needs an order. mu must be held.
func (i *Issuer) due(host string, now time.Time, config Config) bool {
	if i.orderable(host, config) != nil {
		return false
	}
	h := i.held[host]
	return h == nil || !now.Before(h.Retry) && (h.certificate == nil || h.Directory != config.Directory || !now.Before(h.Renew))
}

// SecretNames returns the names of the Secrets with the account and the certificates.
func SecretNames() []string {
	names := []string{accountSecret}
	for n := range shards {
		names = append(names, shardName(n))
	}
	return names
}

var _ hostcerts.ACME = (*Issuer)(nil)

// secretOf returns a new Secret of the issuer.
func (i *Issuer) secretOf(name string) *corev1.Secret {
	s := &corev1.Secret{Type: corev1.SecretTypeOpaque, Data: map[string][]byte{}}
	s.Namespace, s.Name = i.options.Namespace, name
	s.Labels = map[string]string{"app.kubernetes.io/part-of": "knative", "app.kubernetes.io/component": "certificates"}
	return s
}
