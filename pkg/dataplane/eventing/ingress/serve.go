package ingress

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
)

const (
	// maxHeaderBytes is the maximum size of request line and headers; larger requests are answered 431.
	maxHeaderBytes = 64 << 10
	// headerTimeout is the maximum time to read request line and headers.
	headerTimeout = 10 * time.Second
	// idleTimeout is the maximum time of a connection without a request.
	idleTimeout = 2 * time.Minute
	// writeTimeout is the maximum time from the headers of a request until its response is written.
	writeTimeout = 2 * time.Minute
	// maxStreams is the maximum number of concurrent requests per HTTP/2 connection.
	maxStreams = 250
	// maxReceiveBuffer bounds the unread input of an HTTP/2 client, maxFrame one frame, in bytes. They are the smallest values that
	// HTTP/2 allows, because they count against the memory budget for each connection.
	maxReceiveBuffer, maxFrame = 64 << 10, 16 << 10
)

// Serve serves HTTP/1.1 and HTTP/2 without TLS (prior knowledge) until ctx is canceled, drains requests for up to stopTimeout,
// and returns nil. It fails if listener fails.
func (h *Handler) Serve(ctx context.Context, listener net.Listener, stopTimeout time.Duration) error {
	return h.serveListener(ctx, listener, nil, stopTimeout)
}

// ServeTLS is like Serve, over TLS.
func (h *Handler) ServeTLS(ctx context.Context, listener net.Listener, config *tls.Config, stopTimeout time.Duration) error {
	return h.serveListener(ctx, listener, config, stopTimeout)
}

// serveListener serves a listener, over TLS if config is not nil.
func (h *Handler) serveListener(ctx context.Context, listener net.Listener, config *tls.Config, stopTimeout time.Duration) error {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(config != nil)
	protocols.SetUnencryptedHTTP2(config == nil)
	server := &http.Server{
		Handler: h, Protocols: protocols, TLSConfig: config, ConnContext: connContext, ConnState: connState,
		MaxHeaderBytes: maxHeaderBytes, IdleTimeout: idleTimeout, WriteTimeout: writeTimeout,
		// ReadHeaderTimeout bounds handshakes too. The server bounds the time of bodies that are not read because the request was rejected by its headers.
		ReadHeaderTimeout: headerTimeout, ReadTimeout: h.bodies.readTimeout,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams, MaxReceiveBufferPerConnection: maxReceiveBuffer, MaxReceiveBufferPerStream: maxReceiveBuffer,
			MaxReadFrameSize: maxFrame, SendPingTimeout: idleTimeout, PingTimeout: headerTimeout,
		},
		// Errors of clients are not logged.
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
	limited := conns{Listener: flow.LimitListener(listener, flow.MaxConnections()), budget: h.bodies.memory, tls: config != nil}
	var failure error
	if config == nil {
		failure = server.Serve(limited)
	} else {
		failure = server.ServeTLS(limited, "", "")
	}
	if stop() {
		// ctx was not canceled.
		server.Close()
		return fmt.Errorf("serve events at %s: %w", listener.Addr(), failure)
	}
	<-stopped
	return nil
}
