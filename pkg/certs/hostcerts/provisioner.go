package hostcerts

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-base/metrics"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/certs"
)

const (
	// secretsCheck is the interval at which Secrets are read, secretsPerSecond bounds the rate.
	secretsCheck, secretsPerSecond = 5 * time.Second, 50
	// secretTimeout bounds the time of reading a Secret.
	secretTimeout = 5 * time.Second
	// renewalCheck is the interval at which issued certificates are checked.
	renewalCheck = time.Minute
)

// Options configure a Provisioner.
type Options struct {
	Authority *certs.HostAuthority
	// ReadSecret reads a Secret.
	ReadSecret func(ctx context.Context, key types.NamespacedName) (*corev1.Secret, error)
	// ACME obtains certificates from an ACME server. Nil provides none.
	ACME ACME
	// Store has the certificates of the gateway of this replica. Nil without a gateway.
	Store  Store
	Clock  clock.WithTicker
	Logger klog.Logger
	// Register registers the metrics. Nil disables them.
	Register func(...metrics.Registerable)
}

// Provisioner provides the requested certificates. Certificates that it issues exist in memory only. If the Secret of a host name becomes
// invalid, the last valid certificate remains.
type Provisioner struct {
	subscribers
	options  Options
	expiries *metrics.GaugeVec
	reissue  chan struct{}
	stopping chan struct{}
	stop     func()

	// mu guards the fields below.
	mu      sync.Mutex
	claims  claims
	hosts   map[string]*host
	secrets map[types.NamespacedName]*secret
	streams map[*stream]struct{}
	// tickets are the keys of session tickets that the gateways have.
	tickets [][32]byte
}

// host is a host name with a request.
type host struct {
	// claim is the request that certificate is for.
	claim claim
	// certificate is the one to serve, or nil. issued is set if the authority issued it; external is true if it is from a Secret.
	certificate *tls.Certificate
	issued      *certs.HostCertificate
	external    bool
	problem     string
	outdated    bool
	failed      bool
	// challenge is the pending challenge of an ACME server, or nil.
	challenge *Challenge
}

// state returns the State of h.
func (h *host) state() State {
	return State{Ready: h.certificate != nil, Outdated: h.outdated, Problem: h.problem, Failed: h.failed}
}

// secret is a Secret that a request names.
type secret struct {
	// content is nil unless the Secret exists; known is false before it has been read.
	content *corev1.Secret
	known   bool
}

// NewProvisioner returns a Provisioner without requests. Call it before Authority.Run.
func NewProvisioner(o Options) *Provisioner {
	if o.Store == nil {
		o.Store = none{}
	}
	p := &Provisioner{
		options: o, expiries: newExpiries(o.Register), reissue: make(chan struct{}, 1), stopping: make(chan struct{}),
		claims: newClaims(), hosts: map[string]*host{}, secrets: map[types.NamespacedName]*secret{}, streams: map[*stream]struct{}{},
	}
	p.stop = sync.OnceFunc(func() { close(p.stopping) })
	o.Authority.Subscribe(func() {
		select {
		case p.reissue <- struct{}{}:
		default:
		}
	})
	if o.ACME != nil {
		o.ACME.Subscribe(p.follow)
	}
	return p
}

// Set replaces the requests of an owner. Certificates that can be provided at once have been when it returns; it waits for the authority
// and the Secrets for a limited time.
func (p *Provisioner) Set(ctx context.Context, owner Owner, requests []Request) {
	p.mu.Lock()
	same := slices.Equal(p.claims.byOwner[owner], requests)
	p.mu.Unlock()
	if same {
		return
	}
	if len(requests) > 0 {
		// For the keys of session tickets too.
		p.options.Authority.Require()
	}
	read := map[types.NamespacedName]*secret{}
	for _, r := range requests {
		if r.ACME && r.Secret == "" {
			if p.options.ACME != nil {
				p.options.ACME.Await(ctx)
			}
			continue
		}
		if r.Secret == "" {
			p.options.Authority.Await(ctx)
			continue
		}
		key := types.NamespacedName{Namespace: owner.Key.Namespace, Name: r.Secret}
		if !p.knows(key) && read[key] == nil {
			if content, err := p.read(ctx, key); err == nil {
				read[key] = content
			}
		}
	}

	p.mu.Lock()
	defer p.mu.Unlock()
	hadSecret := slices.ContainsFunc(p.claims.byOwner[owner], func(r Request) bool { return r.Secret != "" })
	affected := p.claims.set(owner, requests)
	for _, r := range requests {
		if r.Secret == "" {
			continue
		}
		key := types.NamespacedName{Namespace: owner.Key.Namespace, Name: r.Secret}
		if p.secrets[key] == nil {
			p.secrets[key] = &secret{}
		}
		if read[key] != nil {
			p.secrets[key] = read[key]
		}
	}
	p.update(affected)
	if hadSecret {
		used := p.hostsOfSecrets()
		maps.DeleteFunc(p.secrets, func(key types.NamespacedName, _ *secret) bool { return used[key] == nil })
	}
}

// State returns the state of the certificate of a host name.
func (p *Provisioner) State(name string) State {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.hosts[name]
	if h == nil {
		return State{Problem: "no certificate is requested"}
	}
	return h.state()
}

// Run renews certificates and follows changes of Secrets until ctx is canceled. Then it ends all streams.
func (p *Provisioner) Run(ctx context.Context) {
	defer p.stop()
	var following sync.WaitGroup
	defer following.Wait()
	following.Go(func() { p.followSecrets(ctx) })
	if p.options.ACME != nil {
		following.Go(func() { p.options.ACME.Run(ctx) })
	}
	ticker := p.options.Clock.NewTicker(renewalCheck)
	defer ticker.Stop()
	for {
		select {
		case <-p.reissue:
		case <-ticker.C():
		case <-ctx.Done():
			return
		}
		p.shareTickets()
		p.renew(ctx)
	}
}

// shareTickets passes the keys of session tickets to the gateways if they have changed. Gateways know a key hours before any encrypts with it.
func (p *Provisioner) shareTickets() {
	keys := p.options.Authority.TicketKeys()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(keys) == 0 || slices.Equal(keys, p.tickets) {
		return
	}
	p.tickets = keys
	p.options.Store.SetTicketKeys(keys)
	for s := range p.streams {
		s.notify()
	}
}

// Retire ends all streams, so that gateways use other replicas.
func (p *Provisioner) Retire() { p.stop() }

// renew replaces the issued certificates that are missing, due, or signed by another authority, and updates the states of the ones of an ACME server.
func (p *Provisioner) renew(ctx context.Context) {
	p.mu.Lock()
	names := slices.Collect(maps.Keys(p.hosts))
	p.mu.Unlock()
	defer p.measure()
	for _, name := range names {
		if ctx.Err() != nil {
			return
		}
		p.mu.Lock()
		h := p.hosts[name]
		if h == nil || h.claim.secret != "" || !h.claim.acme && h.issued != nil && p.options.Authority.Current(h.issued) {
			p.mu.Unlock()
			continue
		}
		before := h.state()
		p.update([]string{name})
		after := h.state()
		owners := p.claims.owners(name)
		p.mu.Unlock()
		if before != after {
			p.notify(owners)
		}
	}
}

// update provides the certificates of host names, and passes changes to the gateways. mu must be held.
func (p *Provisioner) update(names []string) {
	changed := map[string]*tls.Certificate{}
	for _, name := range names {
		wanted, ok := p.claims.effective(name)
		if !ok {
			if h := p.hosts[name]; h != nil {
				p.withdraw(name, h)
				delete(p.hosts, name)
				changed[name] = nil
			}
			continue
		}
		h := p.hosts[name]
		if h == nil {
			h = &host{}
			p.hosts[name] = h
			// Streams learn of the request, so that gateways keep a certificate that they have.
			changed[name] = nil
		}
		before, challenge := h.certificate, h.challenge
		p.provide(name, h, wanted)
		if h.certificate != before || !sameChallenge(h.challenge, challenge) {
			changed[name] = h.certificate
		}
	}
	if len(changed) == 0 {
		return
	}
	p.options.Store.Update(changed)
	for s := range p.streams {
		s.changed(maps.Keys(changed))
	}
}

// provide provides the certificate of a host name. On failure the one of the same owner remains. mu must be held.
func (p *Provisioner) provide(name string, h *host, wanted claim) {
	if h.claim.Owner != wanted.Owner && h.claim.Owner != (Owner{}) && (wanted.secret != "" || h.claim.secret != "") {
		// A certificate that another owner provided must not remain.
		h.certificate, h.issued, h.external = nil, nil, false
	}
	if h.claim.acme && !wanted.acme {
		p.withdraw(name, h)
	}
	h.claim, h.outdated, h.failed = wanted, false, false
	if wanted.acme {
		p.provideACME(name, h)
		return
	}
	if wanted.secret != "" {
		p.provideSecret(name, h)
		return
	}
	if h.issued != nil && p.options.Authority.Current(h.issued) {
		h.problem = ""
		return
	}
	issued, err := p.options.Authority.Issue(name)
	if err != nil {
		h.problem = err.Error()
		return
	}
	h.issued, h.certificate, h.external, h.problem = issued, issued.TLS, false, ""
}

// provideSecret provides the certificate of a host name from its Secret. mu must be held.
func (p *Provisioner) provideSecret(name string, h *host) {
	s, key := p.secrets[types.NamespacedName{Namespace: h.claim.Key.Namespace, Name: h.claim.secret}], h.claim.secret
	var err error
	var certificate *tls.Certificate
	var selfSigned bool
	now := p.options.Clock.Now()
	switch {
	case s == nil || !s.known:
		err = errors.New("it has not been read yet")
	case s.content == nil:
		err = errors.New("it does not exist")
	default:
		certificate, err = parseSecret(s.content, name, now)
		selfSigned = err == nil && isSelfSigned(certificate.Leaf)
	}
	if selfSigned && h.external && !isSelfSigned(h.certificate.Leaf) && checkTime(h.certificate.Leaf, now) == nil {
		// Clients that trust the authority of the held certificate would reject the new one.
		err = errors.New("its certificate is self-signed, and the previous one is not")
	}
	switch {
	case err == nil && h.certificate != nil && h.issued == nil && slices.EqualFunc(h.certificate.Certificate, certificate.Certificate, slices.Equal):
		// The same certificate may have another key only with another public key, which is part of it.
		h.problem = ""
	case err == nil:
		h.certificate, h.issued, h.external, h.problem = certificate, nil, true, ""
	default:
		h.problem = fmt.Sprintf("Secret %q cannot be used: %v", key, err)
		if h.certificate != nil {
			h.outdated = true
			h.problem += "; the previous certificate is still served"
		}
		return
	}
	if selfSigned {
		h.problem = fmt.Sprintf("the certificate in Secret %q is self-signed: clients that do not trust it reject it", key)
	}
}

// knows reports whether a Secret has been read.
func (p *Provisioner) knows(key types.NamespacedName) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.secrets[key]
	return s != nil && s.known
}

// read reads a Secret. It fails if it is unknown whether the Secret exists.
func (p *Provisioner) read(ctx context.Context, key types.NamespacedName) (*secret, error) {
	ctx, cancel := context.WithTimeout(ctx, secretTimeout)
	defer cancel()
	content, err := p.options.ReadSecret(ctx, key)
	switch {
	case apierrors.IsNotFound(err):
		return &secret{known: true}, nil
	case err != nil:
		p.options.Logger.Info("Failed to read Secret with a certificate; retrying", "secret", key, "reason", err.Error())
		return nil, fmt.Errorf("read Secret %s: %w", key, err)
	}
	return &secret{content: reduced(content), known: true}, nil
}

// hostsOfSecrets returns the host names of each Secret. mu must be held.
func (p *Provisioner) hostsOfSecrets() map[types.NamespacedName][]string {
	used := map[types.NamespacedName][]string{}
	for name := range p.hosts {
		if wanted, ok := p.claims.effective(name); ok && wanted.secret != "" {
			key := types.NamespacedName{Namespace: wanted.Key.Namespace, Name: wanted.secret}
			used[key] = append(used[key], name)
		}
	}
	return used
}

// followSecrets reads the used Secrets again and again until ctx is canceled.
func (p *Provisioner) followSecrets(ctx context.Context) {
	ticker := p.options.Clock.NewTicker(secretsCheck)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C():
		case <-ctx.Done():
			return
		}
		p.mu.Lock()
		used := map[types.NamespacedName][]string{}
		if len(p.secrets) > 0 {
			used = p.hostsOfSecrets()
		}
		p.mu.Unlock()
		i := 0
		for key, names := range used {
			if i++; i%secretsPerSecond == 0 {
				select {
				case <-p.options.Clock.After(time.Second):
				case <-ctx.Done():
					return
				}
			}
			p.refresh(ctx, key, names)
		}
	}
}

// refresh reads a Secret again, and provides the certificates of host names that request it.
func (p *Provisioner) refresh(ctx context.Context, key types.NamespacedName, names []string) {
	read, err := p.read(ctx, key)
	if err != nil {
		return
	}
	p.mu.Lock()
	held := p.secrets[key]
	if held == nil {
		p.mu.Unlock()
		return
	}
	if !held.known || held.content == nil || read.content == nil || held.content.ResourceVersion != read.content.ResourceVersion {
		p.secrets[key] = read
	}
	var owners []Owner
	for _, name := range names {
		h := p.hosts[name]
		if h == nil {
			continue
		}
		before := h.state()
		// Also without a change: a certificate may have expired.
		p.update([]string{name})
		if after := h.state(); after != before {
			owners = append(owners, p.claims.owners(name)...)
		}
	}
	p.mu.Unlock()
	p.notify(owners)
}
