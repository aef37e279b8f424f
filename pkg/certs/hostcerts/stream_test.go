package hostcerts

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/knative-apiserver/knative-apiserver/pkg/certs"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/peer"
	"github.com/knative-apiserver/knative-apiserver/test/port"
)

// peerTLS returns the configuration of a replica with a certificate for a name.
func (i *issuer) peerTLS(t *testing.T, name string) *tls.Config {
	t.Helper()
	key := ecKey(t)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), DNSNames: []string{name}, NotBefore: i.cert.NotBefore, NotAfter: i.cert.NotAfter,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, i.cert, key.Public(), i.key)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(i.cert)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, RootCAs: pool, ClientCAs: pool}
}

// control is a replica with a Provisioner that listens on loopback.
type control struct {
	*fixture
	address string
	stop    func()
}

// newControl starts a replica, on the given address unless it is empty.
func newControl(t *testing.T, i *issuer, address string, edit ...func(*certs.HostOptions)) *control {
	t.Helper()
	c := &control{fixture: newFixture(t, edit...)}
	server := peer.NewServer(i.peerTLS(t, peer.ServerName))
	server.HandleAll(Element, c.Provisioner)
	var listener net.Listener
	if address == "" {
		// A gateway connects to the address while nothing listens there.
		listener = port.Listen(t)
	} else {
		var err error
		if listener, err = port.ListenOn(address); err != nil {
			t.Fatal(err)
		}
	}
	c.address = listener.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, listener, time.Minute) }()
	c.stop = sync.OnceFunc(func() {
		c.Retire()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(c.stop)
	return c
}

// changes signals updates of a gateway's certificates.
type changes struct {
	fakeStore
	updated chan struct{}
}

func (c *changes) Update(certificates map[string]*tls.Certificate) {
	c.fakeStore.Update(certificates)
	c.updated <- struct{}{}
}

// await waits until a condition holds, which is checked after each update.
func (c *changes) await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	limit := time.After(time.Minute)
	for !condition() {
		select {
		case <-c.updated:
		case <-limit:
			t.Fatalf("%s did not happen; the gateway has %v", what, c.hosts())
		}
	}
}

// newGateway starts a Receiver that connects to an address.
func newGateway(t *testing.T, config *tls.Config, address string) (*Receiver, *changes) {
	t.Helper()
	client, store := peer.NewClient(config), &changes{updated: make(chan struct{}, 1000)}
	r := NewReceiver(ReceiverOptions{
		Connect: func(ctx context.Context, read func(io.Reader) error) error {
			return peer.Call{Method: http.MethodGet, Path: "/" + Element, Read: read}.Do(ctx, client, membership.Member{Name: "control", Address: address})
		},
		Store: store, Clock: clock.RealClock{}, Logger: klog.Background(),
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done; client.CloseIdleConnections() })
	return r, store
}

// TestStream covers the stream to a gateway over mutual TLS: all at first, then changes; the gateway keeps them while the other
// replica is away, and has exactly the certificates of the next one after that.
func TestStream(t *testing.T) {
	i := newIssuer(t)
	c := newControl(t, i, "")
	var first []Request
	for n := range 300 {
		first = append(first, Request{Host: fmt.Sprintf("host-%d.example.com", n)})
	}
	a, b := owner("Route", "a"), owner("Route", "b")
	c.Set(t.Context(), a, first)
	r, gateway := newGateway(t, i.peerTLS(t, "knative-gateways"), c.address)
	notified := make(chan Owner, 1000)
	r.Subscribe(func(owner Owner) { notified <- owner })
	r.Set(t.Context(), b, []Request{{Host: "b"}})
	<-r.Synced()
	if got := len(gateway.hosts()); got != 300 {
		t.Fatalf("the gateway has %d certificates, want 300", got)
	}
	sent, received := c.store.get("host-7.example.com"), gateway.get("host-7.example.com")
	if !slices.EqualFunc(sent.Certificate, received.Certificate, slices.Equal) || !sent.PrivateKey.(*ecdsa.PrivateKey).Equal(received.PrivateKey) || received.Leaf == nil {
		t.Error("the gateway has another certificate than the one that was issued")
	}
	if r.State("b").Ready || !r.State("host-7.example.com").Ready {
		t.Errorf("states are %+v, %+v", r.State("b"), r.State("host-7.example.com"))
	}

	c.Set(t.Context(), b, []Request{{Host: "b"}, {Host: "secret", Secret: "missing"}})
	c.Set(t.Context(), a, first[:10])
	gateway.await(t, "a change", func() bool { return len(gateway.hosts()) == 11 && gateway.get("b") != nil })
	// Owners are notified after the update.
	if got := <-notified; got != b {
		t.Errorf("notified %v, want the owner of b", got)
	}

	c.stop()
	if got := len(gateway.hosts()); got != 11 || !r.State("b").Ready {
		t.Errorf("without a connection the gateway has %d certificates, want 11", got)
	}
	// The next replica has not been able to provide one of the certificates: the gateway keeps its own.
	before := gateway.get("b")
	next := newControl(t, i, c.address)
	next.Set(t.Context(), a, first[:2])
	next.Set(t.Context(), b, []Request{{Host: "b", Secret: "missing"}})
	gateway.await(t, "a new connection", func() bool { return len(gateway.hosts()) == 3 })
	if gateway.get("b") != before {
		t.Error("the gateway lost a certificate that the other replica does not have yet")
	}
	if len(notified) > 0 {
		t.Errorf("notified %v too", <-notified)
	}
}

// TestTicketKeys covers that the gateways get the keys of session tickets, of this replica and over the stream, whatever the source of certificates is, and
// that they get new ones when these are replaced.
func TestTicketKeys(t *testing.T) {
	i, fake := newIssuer(t), testingclock.NewFakeClock(time.Now())
	c := newControl(t, i, "", func(o *certs.HostOptions) { o.Clock = fake })
	_, gateway := newGateway(t, i.peerTLS(t, "knative-gateways"), c.address)
	gateway.await(t, "the first batch", func() bool { return true })
	if c.store.ticketKeys() != nil || gateway.ticketKeys() != nil {
		t.Error("there are keys without a host name")
	}
	c.Set(t.Context(), owner("DomainMapping", "a"), []Request{{Host: "a", Secret: "missing"}})
	gateway.await(t, "the first keys", func() bool { return gateway.ticketKeys() != nil })
	before := gateway.ticketKeys()
	fake.Step(13 * time.Hour)
	for limit := time.After(time.Minute); slices.Equal(c.store.ticketKeys(), before); {
		// The timer of the authority may begin after the step.
		fake.Step(time.Second)
		c.shareTickets()
		select {
		case <-limit:
			t.Fatal("the keys were not replaced")
		case <-time.After(time.Millisecond):
		}
	}
	if after := c.store.ticketKeys(); after[0] != before[1] || after[2] != before[0] {
		t.Error("the keys that follow are not the announced and the previous one")
	}
	gateway.await(t, "the next keys", func() bool { return slices.Equal(gateway.ticketKeys(), c.store.ticketKeys()) })
	// Another gateway, and the same one at its next connection, get them with the first batch.
	r, other := newGateway(t, i.peerTLS(t, "knative-gateways"), c.address)
	<-r.Synced()
	if !slices.Equal(other.ticketKeys(), c.store.ticketKeys()) {
		t.Error("another gateway has other keys")
	}
}

// TestStreamOfAnother covers that a gateway does not keep the certificate of one tenant for a host name that has moved to another one, also
// if it has not learned of the time in between.
func TestStreamOfAnother(t *testing.T) {
	i := newIssuer(t)
	c := newControl(t, i, "")
	const host = "shop.example.com"
	first, second := owner("DomainMapping", host), owner("DomainMapping", host)
	second.Key.Namespace = "other"
	c.secrets.put("shop", i.valid(t, host))
	c.Set(t.Context(), first, []Request{{Host: host, Secret: "shop"}})
	r, gateway := newGateway(t, i.peerTLS(t, "knative-gateways"), c.address)
	<-r.Synced()
	if gateway.get(host) == nil {
		t.Fatal("the gateway has no certificate")
	}
	c.Set(t.Context(), second, []Request{{Host: host, Secret: "missing"}})
	c.Set(t.Context(), first, nil)
	gateway.await(t, "the end of the certificate", func() bool { return gateway.get(host) == nil })
}

// TestStreamRefuses covers that certificates are for replicas and gateways only, and that a replica that stops sends its gateways away.
func TestStreamRefuses(t *testing.T) {
	i := newIssuer(t)
	c := newControl(t, i, "")
	call := func(config *tls.Config, method string) (err error) {
		client := peer.NewClient(config)
		defer client.CloseIdleConnections()
		// The timeouts of the client are shorter than a stall of a busy machine.
		for range 5 {
			err = peer.Call{Method: method, Path: "/" + Element}.Do(t.Context(), client, membership.Member{Name: "control", Address: c.address})
			var timeout net.Error
			if !errors.As(err, &timeout) || !timeout.Timeout() {
				break
			}
		}
		return err
	}
	stranger := newIssuer(t).peerTLS(t, peer.ServerName)
	stranger.RootCAs = i.peerTLS(t, "a").RootCAs
	if err := call(stranger, http.MethodGet); err == nil || strings.Contains(err.Error(), "200") {
		t.Errorf("a client without a certificate of the authority gets %v, want a failed handshake", err)
	}
	gateway := i.peerTLS(t, "knative-gateways")
	if err := call(gateway, http.MethodPost); err == nil || !strings.Contains(err.Error(), "405") {
		t.Errorf("POST gets %v, want 405", err)
	}
	c.Retire()
	if err := call(gateway, http.MethodGet); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("a replica that stops answers %v, want 503", err)
	}
}

// TestReceiveInvalid covers that a stream with invalid or too large messages changes nothing.
func TestReceiveInvalid(t *testing.T) {
	store := &fakeStore{}
	r := NewReceiver(ReceiverOptions{Store: store, Clock: clock.RealClock{}, Logger: klog.Background()})
	held := &tls.Certificate{}
	r.held["a"] = held
	for _, stream := range []string{
		"{", `{"host":"a","certificate":["AA=="],"key":"AA=="}` + "\n" + `{"synced":true}`,
		`{"host":"` + strings.Repeat("a", maxMessage) + `"}` + "\n" + `{"synced":true}`,
		`{"host":"b","pending":true}` + "\n", `{"synced":true,"tickets":["AA=="]}`,
	} {
		if err := r.read(strings.NewReader(stream), func() {}); err == nil {
			t.Error("read returns no error")
		}
		if store.updates != 0 || store.tickets != nil || r.held["a"] != held {
			t.Errorf("%.40q changed the certificates", stream)
		}
	}
}
