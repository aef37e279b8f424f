package plugin

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/knative-apiserver/knative-apiserver/pkg/console"
)

func newConsoleCommand(e *environment) *cobra.Command {
	port := 0
	command := &cobra.Command{
		Use:   "console",
		Short: "Serve web pages about Services, events and scaling",
		Long: "Serves web pages on this machine until it is interrupted, and prints their address: the flow of events, Services with their Revisions and logs, " +
			"where an event is, and why a Revision has its scale. The pages have the permissions of the user; the address has a token, so that other users " +
			"of this machine cannot open them.",
		Example: "  kubectl knative console\n" +
			"  kubectl knative console --port 8090 -n shop",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if port < 0 || port > 65535 {
				return fmt.Errorf("--port %d must be from 0 to 65535", port)
			}
			return serveConsole(command.Context(), e, port)
		},
	}
	command.Flags().IntVar(&port, "port", 0, "Port of 127.0.0.1. 0 selects a free port.")
	return command
}

func serveConsole(ctx context.Context, e *environment, port int) error {
	s, err := e.connect()
	if err != nil {
		return err
	}
	c, err := console.New(console.Options{Config: s.config, Namespace: s.namespace})
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return fmt.Errorf("listen on --port %d: %w", port, err)
	}
	fmt.Fprintln(e.Out, c.URL(listener))
	return c.Serve(ctx, listener)
}
