// Package peer is how the replicas of this server talk to each other: HTTP/2 over mutual TLS, on a port that is for
// nobody else.
package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"time"
)

// ServerName is the DNS name in the certificates of all replicas: who presents one of our authority for it is a replica,
// whatever address it has.
const ServerName = "knative-apiserver-peers"

const (
	// maxStreams bounds the requests at a time of a connection; clients open further ones.
	maxStreams = 1000
	// headerTimeout bounds the time that a handshake and the head of a request take, idleTimeout that of a connection
	// without requests.
	headerTimeout, idleTimeout = 10 * time.Second, 2 * time.Minute
	// maxHeaderBytes is more than the ports that requests come from let through, as headers are added.
	maxHeaderBytes = 1 << 20
	// windowPerConnection is how much of requests' bodies may be on its way on a connection, so that one which nobody
	// reads holds up no other for long, windowPerStream that of one.
	windowPerConnection, windowPerStream = 16 << 20, 1 << 20
)

// Server answers what other replicas ask.
type Server struct {
	tls      *tls.Config
	handlers map[string]http.Handler
}

// NewServer returns a server that presents the certificate of a configuration, and lets in who has one that its
// VerifyConnection accepts or, without that, one of its ClientCAs, which GetConfigForClient may give anew for each
// connection.
func NewServer(config *tls.Config) *Server {
	config = strict(config)
	if next := config.GetConfigForClient; next != nil {
		config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			given, err := next(hello)
			if err != nil || given == nil {
				return given, err
			}
			return strict(given), nil
		}
	}
	return &Server{tls: config, handlers: map[string]http.Handler{}}
}

// strict returns a configuration by which nobody gets in without a certificate.
func strict(config *tls.Config) *tls.Config {
	config = config.Clone()
	config.ClientAuth = tls.RequireAndVerifyClientCert
	if config.VerifyConnection != nil {
		config.ClientAuth = tls.RequireAnyClientCert
	}
	config.MinVersion = tls.VersionTLS13
	config.NextProtos = []string{"h2", "http/1.1"}
	return config
}

// Handle has requests answered whose path begins with an element, such as "events" of /events/default/orders. The handler
// sees the path without it, and otherwise as it was sent. Call it before Serve.
func (s *Server) Handle(element string, handler http.Handler) {
	s.handlers[element] = http.StripPrefix("/"+element, handler)
}

// ServeHTTP implements http.Handler. Paths are not cleaned: they may be those of users' requests.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	element, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	handler, found := s.handlers[element]
	if !found {
		http.NotFound(w, r)
		return
	}
	handler.ServeHTTP(w, r)
}

// Serve answers requests until ctx ends, and returns nil then. Requests that are being answered have stopTimeout to end. It
// fails if listener does.
func (s *Server) Serve(ctx context.Context, listener net.Listener, stopTimeout time.Duration) error {
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	// That is for connections that change their protocol.
	protocols.SetHTTP1(true)
	server := &http.Server{
		Handler: s, TLSConfig: s.tls, Protocols: protocols,
		MaxHeaderBytes: maxHeaderBytes, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams, SendPingTimeout: headerTimeout, PingTimeout: headerTimeout,
			MaxReceiveBufferPerConnection: windowPerConnection, MaxReceiveBufferPerStream: windowPerStream,
		},
		// Who is not a replica is refused, which is no news.
		ErrorLog: log.New(io.Discard, "", 0),
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if server.Shutdown(stopping) != nil {
			server.Close()
		}
	})
	failure := server.ServeTLS(listener, "", "")
	if stop() {
		// Nobody asked for the end.
		return errors.Join(fmt.Errorf("serve peers at %s: %w", listener.Addr(), failure), server.Close())
	}
	<-stopped
	return nil
}
