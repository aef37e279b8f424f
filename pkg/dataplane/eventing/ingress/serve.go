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
	// maxHeaderBytes bounds the head of a request; larger ones are answered 431.
	maxHeaderBytes = 64 << 10
	// headerTimeout bounds the time that the head of a request takes.
	headerTimeout = 10 * time.Second
	// idleTimeout is how long a connection may be without a request.
	idleTimeout = 2 * time.Minute
	// writeTimeout ends connections of clients that do not take their answers. It counts from the head of the request.
	writeTimeout = 2 * time.Minute
	// maxStreams bounds the requests at a time of a connection of HTTP/2.
	maxStreams = 250
)

// Serve answers requests by HTTP/1.1 and by HTTP/2 without TLS (prior knowledge) until ctx ends, and returns nil then.
// Requests that are being answered have stopTimeout to end. It fails if listener does.
func (h *Handler) Serve(ctx context.Context, listener net.Listener, stopTimeout time.Duration) error {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{
		Handler: h, Protocols: protocols,
		MaxHeaderBytes: maxHeaderBytes, IdleTimeout: idleTimeout, WriteTimeout: writeTimeout,
		// The time of bodies that are not read, as the request is refused for its head, is limited by the server.
		ReadHeaderTimeout: headerTimeout, ReadTimeout: h.bodies.readTimeout,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxStreams, SendPingTimeout: idleTimeout, PingTimeout: headerTimeout},
		// What clients do wrong is theirs to know.
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
		// Nobody asked for the end.
		server.Close()
		return fmt.Errorf("serving events at %s: %w", listener.Addr(), failure)
	}
	<-stopped
	return nil
}
