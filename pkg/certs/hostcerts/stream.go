package hostcerts

import (
	"crypto/x509"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"time"
)

// Element is the first element of the path of the stream on connections between replicas.
const Element = "certificates"

const (
	// maxStreams bounds the number of gateways.
	maxStreams = 1000
	// maxMessage bounds the bytes of a message: a chain and its key, encoded.
	maxMessage = 256 << 10
	// writeTimeout bounds the time in which a gateway reads the messages of a batch.
	writeTimeout = time.Minute
)

// message is one line of a stream in JSON. A stream begins with a message for each requested host name, in any order; Synced ends it, and
// every later batch of changes.
type message struct {
	Host string `json:"host,omitempty"`
	// Namespace is the namespace that requests the certificate.
	Namespace string `json:"namespace,omitempty"`
	// Certificate is the chain in DER, Key the key in PKCS #8. Without them the host name is not requested anymore, unless Pending is true:
	// then its certificate is missing, and a gateway keeps the one that it has for the same namespace.
	Certificate [][]byte `json:"certificate,omitempty"`
	Key         []byte   `json:"key,omitempty"`
	Pending     bool     `json:"pending,omitempty"`
	// Challenge is the pending challenge of an ACME server, which the gateway answers until a message for the host name without it.
	Challenge *Challenge `json:"challenge,omitempty"`
	Synced    bool       `json:"synced,omitempty"`
	// Tickets are the keys of session tickets if they have changed. They come with Synced.
	Tickets [][]byte `json:"tickets,omitempty"`
}

// stream is the stream to one gateway.
type stream struct {
	// pending are the host names that have changed since the last batch. Guarded by Provisioner.mu.
	pending map[string]struct{}
	wake    chan struct{}
	// tickets are the keys of session tickets that were sent last.
	tickets [][32]byte
}

// changed marks host names. Provisioner.mu must be held.
func (s *stream) changed(names iter.Seq[string]) {
	for name := range names {
		s.pending[name] = struct{}{}
	}
	s.notify()
}

// notify makes the stream send a batch.
func (s *stream) notify() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// ServeHTTP streams all certificates, and then their changes, to a gateway that has been authenticated.
func (p *Provisioner) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		http.Error(w, "method must be GET", http.StatusMethodNotAllowed)
		return
	}
	select {
	case <-p.stopping:
		http.Error(w, "stopping", http.StatusServiceUnavailable)
		return
	default:
	}
	s := p.subscribe()
	if s == nil {
		http.Error(w, "too many gateways", http.StatusServiceUnavailable)
		return
	}
	defer p.unsubscribe(s)
	w.Header().Set("Content-Type", "application/jsonl")
	control := http.NewResponseController(w)
	for {
		if err := p.send(w, control, s); err != nil {
			p.options.Logger.V(2).Info("Ended stream of certificates", "gateway", r.RemoteAddr, "reason", err.Error())
			return
		}
		select {
		case <-s.wake:
		case <-p.stopping:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// subscribe returns a stream with all host names pending, or nil if there are too many streams.
func (p *Provisioner) subscribe() *stream {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.streams) >= maxStreams {
		return nil
	}
	s := &stream{pending: make(map[string]struct{}, len(p.hosts)), wake: make(chan struct{}, 1)}
	for name := range p.hosts {
		s.pending[name] = struct{}{}
	}
	p.streams[s] = struct{}{}
	return s
}

func (p *Provisioner) unsubscribe(s *stream) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.streams, s)
}

// send writes a batch with the pending changes.
func (p *Provisioner) send(w http.ResponseWriter, control *http.ResponseController, s *stream) error {
	if err := control.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	encoder := json.NewEncoder(w)
	p.mu.Lock()
	pending, tickets := s.pending, p.tickets
	s.pending = map[string]struct{}{}
	p.mu.Unlock()
	for name := range pending {
		m, err := p.message(name)
		if err == nil {
			err = encoder.Encode(m)
		}
		if err != nil {
			return err
		}
	}
	last := message{Synced: true}
	if !slices.Equal(tickets, s.tickets) {
		s.tickets = tickets
		for _, key := range tickets {
			last.Tickets = append(last.Tickets, key[:])
		}
	}
	if err := encoder.Encode(last); err != nil {
		return err
	}
	if err := control.Flush(); err != nil {
		return err
	}
	// Otherwise the deadline would end a stream without changes.
	return control.SetWriteDeadline(time.Time{})
}

// message returns the current message of a host name.
func (p *Provisioner) message(name string) (message, error) {
	m := message{Host: name}
	p.mu.Lock()
	h := p.hosts[name]
	if h == nil {
		p.mu.Unlock()
		return m, nil
	}
	certificate := h.certificate
	m.Namespace = h.claim.Key.Namespace
	m.Challenge = h.challenge
	p.mu.Unlock()
	if certificate == nil {
		m.Pending = true
		return m, nil
	}
	key, err := x509.MarshalPKCS8PrivateKey(certificate.PrivateKey)
	if err != nil {
		return m, fmt.Errorf("encode the key of host name %q: %w", name, err)
	}
	m.Certificate, m.Key = certificate.Certificate, key
	return m, nil
}
