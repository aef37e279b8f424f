package app

import (
	"context"
	"fmt"
	"net"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/knative-apiserver/knative-apiserver/pkg/app/lifecycle"
	"github.com/knative-apiserver/knative-apiserver/pkg/console"
)

// consoleModule serves the console.
type consoleModule struct {
	lifecycle.Tasks
	listener net.Listener
	console  *console.Console
}

// newConsoleModule returns a module with the permissions of a kubeconfig file.
func newConsoleModule(listener net.Listener, kubeconfig string) (*consoleModule, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig of the console: %w", err)
	}
	c, err := console.New(console.Options{Config: config, Namespace: metav1.NamespaceDefault})
	if err != nil {
		return nil, err
	}
	return &consoleModule{listener: listener, console: c}, nil
}

// Name implements lifecycle.Module.
func (m *consoleModule) Name() string { return "console" }

// Start implements lifecycle.Module.
func (m *consoleModule) Start(ctx context.Context, fail func(error)) error {
	m.Begin(ctx, fail)
	m.Go(func(ctx context.Context) error { return m.console.Serve(ctx, m.listener) })
	return nil
}

// address returns the URL of the console, with its token.
func (m *consoleModule) address() string { return m.console.URL(m.listener) }
