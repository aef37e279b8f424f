package plugin

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/knative-apiserver/knative-apiserver/pkg/inspect"
)

// formatDot is the output format for Graphviz.
const formatDot = "dot"

// graphOptions are the flags of the command graph.
type graphOptions struct {
	output
	allNamespaces bool
}

func newGraphCommand(e *environment) *cobra.Command {
	o := &graphOptions{}
	command := &cobra.Command{
		Use:   "graph",
		Short: "Show which Brokers, Channels and Services events pass",
		Long: "Shows the Brokers with their Triggers, the Channels with their Subscriptions, and the subscribers, replies and dead letter sinks of these, with the " +
			"readiness of each object. Services without events are listed last.",
		Example: "  kubectl knative graph\n" +
			"  kubectl knative graph -A -o dot | dot -Tsvg > events.svg",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			return o.run(command.Context(), e)
		},
	}
	command.Flags().BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "Show the objects of all namespaces.")
	o.addFlag(command, formatDot)
	return command
}

func (o *graphOptions) run(ctx context.Context, e *environment) error {
	s, err := e.connect()
	if err != nil {
		return err
	}
	namespace := s.namespace
	if o.allNamespaces {
		namespace = metav1.NamespaceAll
	}
	g, err := inspect.ReadGraph(ctx, s.client, namespace)
	if err != nil {
		return err
	}
	if printed, err := o.structured(e.Out, g); printed || err != nil {
		return err
	}
	if o.format == formatDot {
		return g.WriteDot(e.Out)
	}
	for _, missing := range g.Incomplete {
		fmt.Fprintln(e.Err, "Incomplete: "+missing)
	}
	if len(g.Nodes) == 0 {
		where := "in namespace " + namespace
		if o.allNamespaces {
			where = "in any namespace"
		}
		fmt.Fprintln(e.Err, "No Brokers, Channels and Services found "+where+".")
		return nil
	}
	var errs []error
	for _, tree := range g.Trees(namespace, o.wide()) {
		errs = append(errs, tree.Write(e.Out))
	}
	return errors.Join(errs...)
}
