package gateway

import (
	"container/list"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/certificates"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/http1"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/routetable"
)

const (
	// handshakeSize is the memory of a handshake, in bytes: crypto/tls accepts a message of 64 KiB.
	handshakeSize = 64 << 10
	// handshaking is the namespace of the memory of handshakes. No namespace of users has this name.
	handshaking = "/tls"

	protocolHTTP2 = "h2"
)

var misdirectedRequest = &serving.Rejection{
	Status: http.StatusMisdirectedRequest, Body: "the certificate of this connection is not valid for the host of the request",
}

// tlsConfig returns the configuration of a listener with certificates.
func tlsConfig(certificates *certificates.Store) *tls.Config {
	return &tls.Config{
		GetCertificate: certificates.GetCertificate, GetConfigForClient: certificates.ChallengeConfig,
		WrapSession: certificates.WrapSession, UnwrapSession: certificates.UnwrapSession,
		NextProtos: []string{protocolHTTP2, "http/1.1"}, MinVersion: tls.VersionTLS12,
	}
}

// serveTLS serves a connection with TLS.
func (s *listening) serveTLS(ctx context.Context, with *servers, c *clientConn) {
	conn := http1.NewTLSConn(c, s.tls)
	if !s.handshake(ctx, with.http1.HeaderTimeout, conn) {
		c.Close()
		return
	}
	switch conn.ConnectionState().NegotiatedProtocol {
	case certificates.ProtocolChallenge:
		// The handshake is the answer.
		c.Close()
		return
	case protocolHTTP2:
		with.http2.ServeConn(withServerName(ctx, conn), conn)
		return
	}
	with.http1.ServeConn(ctx, conn)
}

// handshake performs the handshake of a connection, and reports its success.
func (s *listening) handshake(ctx context.Context, within time.Duration, conn *http1.TLSConn) bool {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	h := s.handshakes.begin(ctx, flow.NewArrival(s.budget, handshaking, flow.ClientOf(conn.RemoteAddr())), cancel)
	if h == nil {
		return false
	}
	defer s.handshakes.end(h)
	return conn.HandshakeContext(ctx) == nil
}

// handshakeTime is the time that every handshake gets that has begun.
const handshakeTime = 100 * time.Millisecond

// handshakes are the unfinished handshakes of a listener. Without memory for another one, it waits for the one that began first: until that has
// ended, or has had handshakeTime and is canceled. So clients that begin handshakes and do not continue them do not lock out others, and
// handshakes do not cancel each other when many begin at once.
type handshakes struct {
	mu sync.Mutex
	// all has the handshakes that no other one waits for, in the order in which they begin.
	all list.List // of *handshake, guarded by mu
}

// handshake is an unfinished handshake.
type handshake struct {
	// keeps is the time until which it is not canceled for another one.
	keeps  time.Time
	cancel context.CancelFunc
	ended  chan struct{}
	// memory is the memory of this one, or of the one that it waits for.
	memory *flow.Arrival
	// at is nil if another one waits for the memory of this one.
	at *list.Element
}

// begin adds a handshake and waits until it has memory. It returns nil if there will be none before the deadline of ctx.
func (s *handshakes) begin(ctx context.Context, memory *flow.Arrival, cancel context.CancelFunc) *handshake {
	h, first := s.add(ctx, memory, cancel)
	if first == nil {
		return h
	}
	timer := time.NewTimer(time.Until(first.keeps))
	defer timer.Stop()
	select {
	case <-first.ended:
	case <-timer.C:
		// It ends soon after.
		first.cancel()
	case <-ctx.Done():
		first.cancel()
		s.end(h)
		return nil
	}
	return h
}

// add adds a handshake, and returns the one whose memory it gets, or nil if it has memory of its own. It returns nothing if there will be no
// memory before the deadline of ctx.
func (s *handshakes) add(ctx context.Context, memory *flow.Arrival, cancel context.CancelFunc) (h, first *handshake) {
	s.mu.Lock()
	defer s.mu.Unlock()
	begins := time.Now()
	if !memory.Reserve(handshakeSize) {
		front := s.all.Front()
		if front == nil {
			return nil, nil
		}
		first = front.Value.(*handshake)
		if first.keeps.After(begins) {
			begins = first.keeps
		}
		if deadline, ok := ctx.Deadline(); ok && !begins.Before(deadline) {
			return nil, nil
		}
		s.all.Remove(front)
		first.at = nil
		memory = first.memory
	}
	h = &handshake{keeps: begins.Add(handshakeTime), cancel: cancel, ended: make(chan struct{}), memory: memory}
	h.at = s.all.PushBack(h)
	return h, first
}

// end removes a handshake that has ended. Its memory passes to the one that waits for it.
func (s *handshakes) end(h *handshake) {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(h.ended)
	if h.at != nil {
		s.all.Remove(h.at)
		h.memory.ReleaseAll()
	}
}

// misdirected reports whether a request is for a host that the certificate of its connection does not cover.
func misdirected[S string | []byte](certificates *certificates.Store, serverName string, host S) bool {
	return !routetable.SameHost(host, serverName) && !certificates.Covers(serverName, routetable.HostName(string(host)))
}

// serverNameKey is the key of a connection's server name in the context of net/http, which passes nothing else of a connection that is
// lent to it.
type serverNameKey struct{}

// withServerName implements http.Server.ConnContext.
func withServerName(ctx context.Context, conn net.Conn) context.Context {
	if name := http1.ServerName(conn); name != "" {
		return context.WithValue(ctx, serverNameKey{}, name)
	}
	return ctx
}

func serverName(ctx context.Context) string {
	name, _ := ctx.Value(serverNameKey{}).(string)
	return name
}
