// Package peer connects the replicas of this server: HTTP/2 over mutual TLS, on a port that accepts no other
// clients.
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

// ServerName is the DNS name in the certificates of all replicas. A certificate of our authority for that name identifies a replica,
// regardless of its address.
const ServerName = "knative-apiserver-peers"

const (
	// maxStreams bounds the concurrent requests of a connection; clients open further connections.
	maxStreams = 1000
	// headerTimeout bounds the time of a handshake and of a request header, idleTimeout the time of a connection without requests.
	headerTimeout, idleTimeout = 10 * time.Second, 2 * time.Minute
	// maxHeaderBytes exceeds the limit of the public ports, because replicas add headers.
	maxHeaderBytes = 1 << 20
	// windowPerConnection is the flow control window of all request bodies of a connection, so that an unread body does not
	// delay others for long; windowPerStream is the window of one body.
	windowPerConnection, windowPerStream = 16 << 20, 1 << 20
)

// Server serves the requests of other replicas.
type Server struct {
	tls      *tls.Config
	handlers map[string]http.Handler
	// open has the elements that clients with a certificate for another name than ServerName may request.
	open map[string]bool
}

// NewServer returns a server that presents the certificate of config, and accepts clients with a certificate that
// VerifyConnection accepts or, without that function, a certificate of its ClientCAs. GetConfigForClient may replace these for
// each connection.
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
	return &Server{tls: config, handlers: map[string]http.Handler{}, open: map[string]bool{}}
}

// strict returns a configuration that requires a certificate of each client.
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

// Handle registers the handler of requests whose path begins with an element, such as "events" of /events/default/orders. The handler
// gets the path without it, and otherwise unchanged. Only clients with a certificate for ServerName may request it. Call it before
// Serve.
func (s *Server) Handle(element string, handler http.Handler) {
	s.handlers[element] = http.StripPrefix("/"+element, handler)
}

// HandleAll is like Handle, but all clients that the TLS configuration accepts may request it, also those with other names.
func (s *Server) HandleAll(element string, handler http.Handler) {
	s.Handle(element, handler)
	s.open[element] = true
}

// isReplica reports whether the client of a request has a certificate for ServerName.
func isReplica(r *http.Request) bool {
	return r.TLS != nil && len(r.TLS.PeerCertificates) > 0 && r.TLS.PeerCertificates[0].VerifyHostname(ServerName) == nil
}

// ServeHTTP implements http.Handler. It does not clean paths: they may be the paths of users' requests.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	element, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	handler, found := s.handlers[element]
	if !found {
		http.NotFound(w, r)
		return
	}
	if !s.open[element] && !isReplica(r) {
		http.Error(w, "only for replicas with all permissions", http.StatusForbidden)
		return
	}
	handler.ServeHTTP(w, r)
}

// Serve serves requests until ctx is canceled, and returns nil then. Requests in flight have stopTimeout to end. It
// fails if listener does.
func (s *Server) Serve(ctx context.Context, listener net.Listener, stopTimeout time.Duration) error {
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	// Connections that change their protocol need HTTP/1.1.
	protocols.SetHTTP1(true)
	server := &http.Server{
		Handler: s, TLSConfig: s.tls, Protocols: protocols,
		MaxHeaderBytes: maxHeaderBytes, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams, SendPingTimeout: headerTimeout, PingTimeout: headerTimeout,
			MaxReceiveBufferPerConnection: windowPerConnection, MaxReceiveBufferPerStream: windowPerStream,
		},
		// A rejected client is not an error of this replica.
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
		// ctx is not canceled.
		return errors.Join(fmt.Errorf("serve peers at %s: %w", listener.Addr(), failure), server.Close())
	}
	<-stopped
	return nil
}
