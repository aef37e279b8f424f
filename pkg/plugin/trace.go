package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/inspect"
)

// traceOptions are the flags of the command trace.
type traceOptions struct {
	output
	id, source, traceID string
}

func newTraceCommand(e *environment) *cobra.Command {
	traced := kinds{brokers, channels}
	o := &traceOptions{}
	command := &cobra.Command{
		Use:   "trace (broker|channel) NAME (--id ID [--source SOURCE] | --trace-id ID)",
		Short: "Show where an event is",
		Long: "Shows where an event is that a Broker or Channel accepted: its sender, the Triggers or Subscriptions that got it, each attempt to deliver it, the " +
			"filter that did not match for the other Triggers, dead letters and drops, and the same for replies and events that followed.",
		Example: "  kubectl knative trace broker default --id 1001\n" +
			"  kubectl knative trace channel orders --trace-id 4bf92f3577b34da6a3ce929d0e0e4736 -o wide",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: traced.complete(e),
		RunE: func(command *cobra.Command, args []string) error {
			kind, name, err := traced.object(args)
			if err != nil {
				return err
			}
			if err := o.validate(); err != nil {
				return err
			}
			return o.run(command.Context(), e, kind, name)
		},
	}
	flags := command.Flags()
	flags.StringVar(&o.id, "id", "", "Attribute id of the event.")
	flags.StringVar(&o.source, "source", "", "Attribute source of the event. Empty finds events of all sources.")
	flags.StringVar(&o.traceID, "trace-id", "", "W3C trace ID of the events, in 32 hexadecimal digits.")
	command.MarkFlagsOneRequired("id", "trace-id")
	command.MarkFlagsMutuallyExclusive("id", "trace-id")
	command.MarkFlagsMutuallyExclusive("source", "trace-id")
	o.addFlag(command)
	return command
}

func (o *traceOptions) run(ctx context.Context, e *environment, kind *kind, name string) error {
	s, err := e.connect()
	if err != nil {
		return err
	}
	trace, err := inspect.Trace(ctx, s.client, kind.singular+"s", s.namespace, name, inspect.TraceOptions{ID: o.id, Source: o.source, TraceID: o.traceID})
	if err != nil {
		return err
	}
	if printed, err := o.structured(e.Out, trace); printed || err != nil {
		return err
	}
	if len(trace.Events) == 0 {
		for _, reason := range trace.Incomplete {
			fmt.Fprintln(e.Err, "Incomplete: "+reason)
		}
		return fmt.Errorf("%s %q has no record of this event: it was not accepted there, or the record is older than the retention of traces", kind.singular, name)
	}
	return writeTrace(e.Out, trace, o.wide())
}

// writeTrace prints a tree for each event that did not follow from another one.
func writeTrace(to io.Writer, trace *duckv1.EventTrace, wide bool) error {
	var errs []error
	for _, tree := range inspect.TraceTrees(trace, wide) {
		errs = append(errs, tree.Write(to))
	}
	for _, reason := range trace.Incomplete {
		_, err := fmt.Fprintln(to, "Incomplete: "+reason)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
