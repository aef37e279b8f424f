package hostcerts

import (
	"bufio"
	"bytes"
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/backoff"
)

// firstPause and lastPause are the pauses between attempts to connect.
const firstPause, lastPause = 200 * time.Millisecond, 5 * time.Second

// errEnded is the error of a stream that the other replica ended.
var errEnded = errors.New("the stream ended")

// ReceiverOptions configure a Receiver.
type ReceiverOptions struct {
	// Connect requests a stream from a replica with a Provisioner and passes it to read, whose error it returns.
	Connect func(ctx context.Context, read func(io.Reader) error) error
	Store   Store
	Clock   clock.Clock
	Logger  klog.Logger
}

// Receiver receives the certificates of a Provisioner in another replica. While there is no connection, it keeps the last ones.
type Receiver struct {
	subscribers
	options ReceiverOptions
	synced  chan struct{}
	isReady func()

	// mu guards the fields below.
	mu     sync.Mutex
	claims claims
	held   map[string]*tls.Certificate
	// namespaces are the namespaces that requested the held certificates.
	namespaces map[string]string
	// challenges are the host names with a challenge to answer.
	challenges map[string]*Challenge
}

// NewReceiver returns a Receiver without certificates.
func NewReceiver(o ReceiverOptions) *Receiver {
	r := &Receiver{
		options: o, synced: make(chan struct{}), claims: newClaims(),
		held: map[string]*tls.Certificate{}, namespaces: map[string]string{}, challenges: map[string]*Challenge{},
	}
	r.isReady = sync.OnceFunc(func() { close(r.synced) })
	return r
}

// Set replaces the requests of an owner, which Subscribe reports changes for. The other replica decides which host names get certificates.
func (r *Receiver) Set(_ context.Context, owner Owner, requests []Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.claims.set(owner, requests)
}

// State returns the state of the certificate of a host name.
func (r *Receiver) State(name string) State {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held[name] == nil {
		return State{Problem: "no replica has sent a certificate yet"}
	}
	return State{Ready: true}
}

// Synced is closed once all certificates have been received.
func (r *Receiver) Synced() <-chan struct{} { return r.synced }

// Run receives certificates until ctx is canceled.
func (r *Receiver) Run(ctx context.Context) {
	failures := 0
	for {
		err := r.options.Connect(ctx, func(stream io.Reader) error {
			return r.read(stream, func() { failures = 0 })
		})
		if ctx.Err() != nil {
			return
		}
		r.options.Logger.V(2).Info("Connecting again to receive certificates; keeping the last ones", "reason", err)
		failures++
		if !backoff.Sleep(ctx, r.options.Clock, backoff.Delay(failures, firstPause, lastPause)) {
			return
		}
	}
}

// read applies the messages of a stream, and calls synced after each batch. It returns when the stream ends.
func (r *Receiver) read(stream io.Reader, synced func()) error {
	lines := bufio.NewScanner(stream)
	lines.Buffer(make([]byte, 0, 16<<10), maxMessage)
	batch, namespaces, challenges, first := map[string]*tls.Certificate{}, map[string]string{}, map[string]*Challenge{}, true
	for lines.Scan() {
		var m message
		decoder := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		if err := decoder.Decode(&m); err != nil {
			return fmt.Errorf("decode message about a certificate: %w", err)
		}
		if !m.Synced {
			namespaces[m.Host], challenges[m.Host] = m.Namespace, m.Challenge
		}
		switch {
		case m.Synced:
			if err := r.setTickets(m.Tickets); err != nil {
				return err
			}
			r.apply(batch, namespaces, challenges, first)
			batch, namespaces, challenges, first = map[string]*tls.Certificate{}, map[string]string{}, map[string]*Challenge{}, false
			r.isReady()
			synced()
		case m.Pending:
			batch[m.Host] = r.certificate(m.Host, m.Namespace)
		case len(m.Certificate) == 0:
			batch[m.Host] = nil
		default:
			certificate, err := m.parse()
			if err != nil {
				return fmt.Errorf("parse certificate of host name %q: %w", m.Host, err)
			}
			batch[m.Host] = certificate
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read stream of certificates: %w", err)
	}
	return errEnded
}

// setTickets passes the keys of session tickets to the gateway, if there are any.
func (r *Receiver) setTickets(encoded [][]byte) error {
	keys := make([][32]byte, len(encoded))
	for i, key := range encoded {
		if len(key) != len(keys[i]) {
			return fmt.Errorf("a key of session tickets has %d bytes, want %d", len(key), len(keys[i]))
		}
		keys[i] = [32]byte(key)
	}
	if len(keys) > 0 {
		r.options.Store.SetTicketKeys(keys)
	}
	return nil
}

// certificate returns the held certificate of a host name, if the namespace requested it.
func (r *Receiver) certificate(name, namespace string) *tls.Certificate {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.namespaces[name] != namespace {
		// A certificate never stays with a host name that moves to another namespace.
		return nil
	}
	return r.held[name]
}

// apply passes a batch of changes to the gateway, with the namespaces and challenges of its host names; nil removes a certificate or
// challenge. If all is true, other host names have none.
func (r *Receiver) apply(batch map[string]*tls.Certificate, namespaces map[string]string, challenges map[string]*Challenge, all bool) {
	r.mu.Lock()
	if all {
		for name := range r.challenges {
			if _, found := challenges[name]; !found {
				challenges[name] = nil
			}
		}
		for name := range r.held {
			if _, found := batch[name]; !found {
				batch[name] = nil
			}
		}
	}
	var owners []Owner
	for name, certificate := range batch {
		if (r.held[name] == nil) != (certificate == nil) {
			owners = append(owners, r.claims.owners(name)...)
		}
		if certificate != nil {
			r.held[name], r.namespaces[name] = certificate, namespaces[name]
		} else {
			delete(r.held, name)
			delete(r.namespaces, name)
		}
	}
	for name, c := range challenges {
		r.answer(name, c)
	}
	r.options.Store.Update(batch)
	r.mu.Unlock()
	r.notify(owners)
}

// answer makes the gateway answer a challenge, or none if it is nil. mu must be held.
func (r *Receiver) answer(name string, c *Challenge) {
	if sameChallenge(r.challenges[name], c) {
		return
	}
	if err := answer(r.options.Store, name, c, r.options.Clock.Now()); err != nil {
		r.options.Logger.Error(err, "Failed to answer ACME challenge", "host", name)
	}
	if c == nil {
		delete(r.challenges, name)
	} else {
		r.challenges[name] = c
	}
}

// parse returns the certificate of a message.
func (m *message) parse() (*tls.Certificate, error) {
	leaf, err := x509.ParseCertificate(m.Certificate[0])
	if err != nil {
		return nil, err
	}
	key, err := x509.ParsePKCS8PrivateKey(m.Key)
	if err != nil {
		return nil, err
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, errors.New("the key cannot sign")
	}
	if public, ok := leaf.PublicKey.(interface{ Equal(crypto.PublicKey) bool }); !ok || !public.Equal(signer.Public()) {
		return nil, errors.New("the key does not match the certificate")
	}
	return &tls.Certificate{Certificate: slices.Clone(m.Certificate), PrivateKey: key, Leaf: leaf}, nil
}
