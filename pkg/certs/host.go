package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// HostAuthorityName is the name of the Secret with the authority of public host names, and of the ConfigMap with its certificate.
const HostAuthorityName = "knative-host-ca"

// HostAuthorityFile is the name of the file with the certificate of the authority of public host names, beside the file with its key.
const HostAuthorityFile = "host-ca.crt"

// ErrNoHostAuthority is the error of certificates that are requested before the authority has been read or created.
var ErrNoHostAuthority = errors.New("the certificate authority of public host names is not available yet")

// hostPatience bounds the time that certificates wait for the authority after the first request.
const hostPatience = 10 * time.Second

// HostOptions configure a HostAuthority. Zero values have the defaults in brackets.
type HostOptions struct {
	// Client is a client of the host cluster that may write regardless of leadership, Namespace the namespace of Secret and ConfigMap. A
	// nil Client keeps the authority in Dir, readable only for the current user.
	Client    kubernetes.Interface
	Namespace string
	Dir       string
	// Validity is the validity of the authority [5 years], LeafValidity the validity of a certificate [90 days].
	Validity, LeafValidity time.Duration
	// Settle is the time that users have to trust the next authority before it signs, and after that the validity of previous certificates [1 day].
	Settle time.Duration
	// Leading reports whether this replica may advance a rotation and write the ConfigMap [always].
	Leading func() bool
	// Clock returns the time [the system clock].
	Clock  clock.WithTicker
	Logger klog.Logger
}

// HostAuthority is the authority that signs the certificates of public host names, with the keys of session tickets. It is created when the first
// certificate is requested, and rotates like the authority of a Manager; users of HTTPS get its certificate from a ConfigMap or a file.
type HostAuthority struct {
	options HostOptions
	keeper  *keeper
	// needed is closed by the first request, ready when the authority is available.
	needed, ready chan struct{}
	need, isReady func()
	current       atomic.Pointer[hostAuthority]
	deadline      atomic.Int64

	mu      sync.Mutex
	changed []func() // guarded by mu
}

// hostAuthority is an immutable snapshot of the authority.
type hostAuthority struct {
	signer  *authority
	bundle  []byte
	tickets [][ticketKeySize]byte
}

// HostCertificate is the certificate of a public host name.
type HostCertificate struct {
	TLS *tls.Certificate
	// Renew is the time to replace it.
	Renew  time.Time
	signer *x509.Certificate
}

// NewHostAuthority returns an authority that does nothing before Run.
func NewHostAuthority(o HostOptions) *HostAuthority {
	const day = 24 * time.Hour
	for value, otherwise := range map[*time.Duration]time.Duration{&o.Validity: 5 * 365 * day, &o.LeafValidity: 90 * day, &o.Settle: day} {
		if *value == 0 {
			*value = otherwise
		}
	}
	if o.Leading == nil {
		o.Leading = func() bool { return true }
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	a := &HostAuthority{options: o, needed: make(chan struct{}), ready: make(chan struct{})}
	a.need, a.isReady = sync.OnceFunc(func() {
		a.deadline.Store(o.Clock.Now().Add(hostPatience).UnixNano())
		close(a.needed)
	}), sync.OnceFunc(func() { close(a.ready) })
	a.keeper = &keeper{
		client: o.Client, namespace: o.Namespace, name: HostAuthorityName,
		clock: o.Clock, logger: o.Logger,
		rotation: rotation{name: HostAuthorityName, validity: o.Validity, settle: o.Settle, tickets: true},
		rotates:  o.Leading,
		// Users cannot be observed.
		known: func(*state) bool { return true },
		apply: a.apply,
	}
	return a
}

// Subscribe makes the authority call changed, from one goroutine, after each change of the signer or of the trusted
// certificates. Call it before Run.
func (a *HostAuthority) Subscribe(changed func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.changed = append(a.changed, changed)
}

// Run maintains the authority from the first request on, until ctx is canceled.
func (a *HostAuthority) Run(ctx context.Context) {
	select {
	case <-a.needed:
	case <-ctx.Done():
		return
	}
	if a.options.Client == nil {
		(&fileKeeper{keeper: a.keeper, path: filepath.Join(a.options.Dir, "host-ca.json")}).run(ctx)
		return
	}
	var publishing sync.WaitGroup
	publishing.Go(func() { a.publish(ctx) })
	a.keeper.run(ctx)
	publishing.Wait()
}

// Require makes Run create the authority if it does not exist.
func (a *HostAuthority) Require() { a.need() }

// Await waits until the authority is available, at most for a short time after the first request. Run must have been called.
func (a *HostAuthority) Await(ctx context.Context) {
	a.need()
	select {
	case <-a.ready:
		return
	default:
	}
	remaining := time.Unix(0, a.deadline.Load()).Sub(a.options.Clock.Now())
	if remaining <= 0 {
		return
	}
	timer := a.options.Clock.NewTimer(remaining)
	defer timer.Stop()
	select {
	case <-a.ready:
	case <-timer.C():
	case <-ctx.Done():
	}
}

// Issue issues the certificate of a host name.
func (a *HostAuthority) Issue(host string) (*HostCertificate, error) {
	return a.issue(names{dns: []string{host}, usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
}

// issue issues a certificate.
func (a *HostAuthority) issue(who names) (*HostCertificate, error) {
	held := a.current.Load()
	if held == nil {
		a.need()
		return nil, ErrNoHostAuthority
	}
	return held.signer.issueFor(who, a.options.LeafValidity, a.options.Clock.Now())
}

// Current reports whether a certificate is signed by the current signer and not due for renewal.
func (a *HostAuthority) Current(c *HostCertificate) bool {
	held := a.current.Load()
	return held == nil || held.signer.cert.Equal(c.signer) && a.options.Clock.Now().Before(c.Renew)
}

// Bundle returns the trusted certificates in PEM, or nil before the authority is available.
func (a *HostAuthority) Bundle() []byte {
	if held := a.current.Load(); held != nil {
		return held.bundle
	}
	return nil
}

// TicketKeys returns the keys of session tickets, or none before the authority is available. The first one encrypts, all decrypt. They change
// every 12 hours; the key that encrypts then is among them before.
func (a *HostAuthority) TicketKeys() [][ticketKeySize]byte {
	if held := a.current.Load(); held != nil {
		return held.tickets
	}
	return nil
}

// apply makes a state current. It returns the time of the next call.
func (a *HostAuthority) apply(s *state, now time.Time) (time.Time, error) {
	held := a.current.Load()
	next := &hostAuthority{signer: s.signer, bundle: s.bundle(), tickets: s.tickets.keys()}
	if a.options.Client == nil && (held == nil || string(held.bundle) != string(next.bundle)) {
		if err := replace(filepath.Join(a.options.Dir, HostAuthorityFile), next.bundle); err != nil {
			return time.Time{}, err
		}
	}
	a.current.Store(next)
	a.isReady()
	if held == nil || string(held.bundle) != string(next.bundle) {
		a.mu.Lock()
		changed := a.changed
		a.mu.Unlock()
		for _, call := range changed {
			call()
		}
	}
	return now.Add(24 * time.Hour), nil
}

// publish keeps the ConfigMap current while this replica leads, until ctx is canceled.
func (a *HostAuthority) publish(ctx context.Context) {
	ticker := a.options.Clock.NewTicker(gatewayCheck)
	defer ticker.Stop()
	select {
	case <-a.ready:
	case <-ctx.Done():
		return
	}
	for {
		if a.options.Leading() {
			if err := a.writeConfigMap(ctx); err != nil && ctx.Err() == nil {
				a.options.Logger.Error(err, "Failed to publish certificate authority of public host names; retrying", "configMap", klog.KRef(a.options.Namespace, HostAuthorityName))
			}
		}
		select {
		case <-ticker.C():
		case <-ctx.Done():
			return
		}
	}
}

// writeConfigMap writes the ConfigMap if it is missing or outdated.
func (a *HostAuthority) writeConfigMap(ctx context.Context) error {
	bundle := string(a.Bundle())
	configMaps := a.options.Client.CoreV1().ConfigMaps(a.options.Namespace)
	existing, err := configMaps.Get(ctx, HostAuthorityName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = configMaps.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: HostAuthorityName, Namespace: a.options.Namespace, Labels: secretLabels()},
			Data:       map[string]string{bundleKey: bundle},
		}, metav1.CreateOptions{})
	case err != nil:
	case existing.Data[bundleKey] == bundle:
		return nil
	default:
		updated := existing.DeepCopy()
		if updated.Data == nil {
			updated.Data = map[string]string{}
		}
		updated.Data[bundleKey] = bundle
		_, err = configMaps.Update(ctx, updated, metav1.UpdateOptions{})
	}
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("write ConfigMap %s/%s: %w", a.options.Namespace, HostAuthorityName, err)
	}
	return nil
}
