package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"gopkg.in/natefinch/lumberjack.v2"
	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/app/lifecycle"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	gatewaycerts "github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/certificates"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/gateway"
)

const (
	// accessLogMegabytes is the size at which the access log rotates, accessLogBackups the number of previous files that are kept.
	accessLogMegabytes, accessLogBackups = 100, 3
	// drainHeaderTimeout limits the time of reading the header of a preStop hook's request.
	drainHeaderTimeout = 10 * time.Second
)

// traffic is the module that accepts requests to Revisions.
type traffic struct {
	lifecycle.Tasks
	gateway *gateway.Gateway
	// listener accepts requests to all host names, public accepts requests to public host names only, and tls accepts requests over TLS
	// with certificates. public and tls may be nil.
	listener, public, tls net.Listener
	// http3 accepts requests by HTTP/3 with the same certificates. It may be nil.
	http3        net.PacketConn
	certificates *gatewaycerts.Store
	// drain accepts requests of preStop hooks, which hooks answers. drain may be nil.
	drain net.Listener
	hooks http.Handler
	// accessLog is closed when no request is in flight. It may be nil.
	accessLog io.Closer
}

// Name implements lifecycle.Module.
func (*traffic) Name() string { return "gateway" }

// Start implements lifecycle.Module.
func (m *traffic) Start(ctx context.Context, fail func(error)) error {
	m.Begin(ctx, fail)
	m.Go(func(ctx context.Context) error { return m.gateway.Serve(ctx, m.listener) })
	if m.public != nil {
		m.Go(func(ctx context.Context) error { return m.gateway.ServePublic(ctx, m.public) })
	}
	if m.tls != nil {
		m.Go(func(ctx context.Context) error { return m.gateway.ServeTLS(ctx, m.tls, m.certificates) })
	}
	if m.http3 != nil {
		m.Go(func(ctx context.Context) error { return m.gateway.ServeHTTP3(ctx, m.http3, m.certificates) })
	}
	if m.drain != nil {
		m.Go(m.serveHooks)
	}
	return nil
}

// Retire closes each client connection after its next response, so that clients use other replicas.
func (m *traffic) Retire() { m.gateway.Retire() }

// Stop waits until no request is in flight, at the latest for the stop timeout of the gateway.
func (m *traffic) Stop(ctx context.Context) error {
	err := m.Tasks.Stop(ctx)
	if m.accessLog == nil {
		return err
	}
	if closing := m.accessLog.Close(); closing != nil {
		klog.FromContext(ctx).Error(closing, "Failed to close access log")
	}
	return err
}

// serveHooks answers preStop hooks until ctx is canceled. It then closes their connections immediately. Kubelets treat a closed
// connection as an answer, so they must use another replica by then.
func (m *traffic) serveHooks(ctx context.Context) error {
	server := &http.Server{Handler: m.hooks, ReadHeaderTimeout: drainHeaderTimeout, IdleTimeout: drainHeaderTimeout}
	defer context.AfterFunc(ctx, func() { server.Close() })()
	if err := server.Serve(flow.LimitListener(m.drain, flow.MaxConnections())); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve preStop hooks: %w", err)
	}
	return nil
}

// openAccessLog returns the access log at a path, which is created by the first write and rotates by size; "-" means stderr.
func openAccessLog(path string) io.WriteCloser {
	if path == "-" {
		return standardError{os.Stderr}
	}
	return &lumberjack.Logger{Filename: path, MaxSize: accessLogMegabytes, MaxBackups: accessLogBackups}
}

// standardError is stderr, which Close leaves open.
type standardError struct{ io.Writer }

// Close implements io.Closer.
func (standardError) Close() error { return nil }
