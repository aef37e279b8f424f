package ingress

import (
	"context"
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
	// maxReceiveBuffer bounds the unread input of an HTTP/2 client, in bytes.
	maxReceiveBuffer = 256 << 10
)

// Serve serves HTTP/1.1 and HTTP/2 without TLS (prior knowledge) until ctx is canceled, drains requests for up to stopTimeout,
// and returns nil. It fails if listener fails.
func (h *Handler) Serve(ctx context.Context, listener net.Listener, stopTimeout time.Duration) error {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{
		Handler: h, Protocols: protocols,
		MaxHeaderBytes: maxHeaderBytes, IdleTimeout: idleTimeout, WriteTimeout: writeTimeout,
		// The server bounds the time of bodies that are not read because the request was rejected by its headers.
		ReadHeaderTimeout: headerTimeout, ReadTimeout: h.bodies.readTimeout,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams, MaxReceiveBufferPerConnection: maxReceiveBuffer, MaxReceiveBufferPerStream: maxReceiveBuffer,
			SendPingTimeout: idleTimeout, PingTimeout: headerTimeout,
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
	failure := server.Serve(flow.LimitListener(listener, flow.MaxConnections()))
	if stop() {
		// ctx was not canceled.
		server.Close()
		return fmt.Errorf("serve events at %s: %w", listener.Addr(), failure)
	}
	<-stopped
	return nil
}
