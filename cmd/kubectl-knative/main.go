// Command kubectl-knative is a plugin of kubectl: kubectl knative.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	_ "k8s.io/client-go/plugin/pkg/client/auth" // the auth providers of kubeconfig files

	"github.com/knative-apiserver/knative-apiserver/pkg/plugin"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(plugin.Run(ctx, plugin.Streams{Out: os.Stdout, Err: os.Stderr}, os.Args[1:]))
}
