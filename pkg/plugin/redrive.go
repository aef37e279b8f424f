package plugin

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	"github.com/knative-apiserver/knative-apiserver/pkg/inspect"
)

func newRedriveCommand(e *environment) *cobra.Command {
	redriven := kinds{triggers, subscriptions}
	o := &redriveOptions{}
	command := &cobra.Command{
		Use:   "redrive [trigger|subscription] NAME",
		Short: "Deliver the dead letters of a Trigger or Subscription again",
		Long: "Delivers the dead letters of a Trigger or Subscription to its subscriber again, in their order: all that exist now, or those that the flags select. Each is deleted once it is " +
			"queued for delivery; one that fails again becomes a dead letter again. With --destination, they are delivered there instead, and those that it does not accept remain. The EventRun trigger-NAME or subscription-NAME shows the progress, and deleting it cancels the redrive.",
		Example: "  kubectl knative redrive trigger/billing --wait\n" +
			"  kubectl knative redrive billing --type com.example.order --rate 50\n" +
			"  kubectl knative redrive billing --destination service/audit",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: redriven.complete(e),
		RunE: func(command *cobra.Command, args []string) error {
			kind, name, err := redriven.object(args)
			if err != nil {
				return err
			}
			if err := o.check(command); err != nil {
				return err
			}
			return o.run(command.Context(), e, kind, name)
		},
	}
	command.Flags().StringVar(&o.destination, "destination", "", "Destination instead of the subscriber: a URL, or service/NAME, broker/NAME or channel/NAME.")
	o.addFlags(command)
	return command
}

// redriveOptions are the flags of the command redrive.
type redriveOptions struct {
	runOptions
	destination string
}

// run requests a redrive of an object.
func (o *redriveOptions) run(ctx context.Context, e *environment, kind *kind, name string) error {
	to, err := inspect.ParseDestination(o.destination)
	if err != nil {
		return fmt.Errorf("--destination: %w", err)
	}
	s, err := e.connect()
	if err != nil {
		return err
	}
	run, err := inspect.Redrive(ctx, s.client, kind.singular+"s", s.namespace, name, &eventingv1alpha1.Redrive{Selector: o.selector(), Rate: o.rate(), Destination: to})
	if err != nil {
		return err
	}
	return o.report(ctx, e, s, run)
}
