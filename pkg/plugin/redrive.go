package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
)

// redriveInterval is the time between reads of the progress.
const redriveInterval = time.Second

// redriveOptions are the flags of the command redrive.
type redriveOptions struct {
	output
	selector eventingv1alpha1.EventSelector
	cesql    string
	rate     int32
	wait     bool
}

func newRedriveCommand(e *environment) *cobra.Command {
	redriven := kinds{triggers, subscriptions}
	o := &redriveOptions{}
	command := &cobra.Command{
		Use:   "redrive [trigger|subscription] NAME",
		Short: "Deliver the dead letters of a Trigger or Subscription again",
		Long: "Delivers the dead letters of a Trigger or Subscription to its subscriber again, in their order: all that exist now, or those that the flags select. Each is deleted once it is " +
			"queued for delivery; one that fails again becomes a dead letter again. The EventRun trigger-NAME or subscription-NAME shows the progress, and deleting it cancels the redrive.",
		Example: "  kubectl knative redrive trigger/billing --wait\n" +
			"  kubectl knative redrive billing --type com.example.order --rate 50",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: redriven.complete(e),
		RunE: func(command *cobra.Command, args []string) error {
			kind, name, err := redriven.object(args)
			if err != nil {
				return err
			}
			if err := o.validate(); err != nil {
				return err
			}
			if o.rate < 1 && command.Flags().Changed("rate") {
				return fmt.Errorf("--rate must be at least 1, not %d", o.rate)
			}
			return o.run(command.Context(), e, kind, name)
		},
	}
	flags := command.Flags()
	flags.StringVar(&o.selector.ID, "id", "", "Attribute id of the events. Empty selects any.")
	flags.StringVar(&o.selector.Type, "type", "", "Attribute type of the events. Empty selects any.")
	flags.StringVar(&o.selector.Source, "source", "", "Attribute source of the events. Empty selects any.")
	flags.StringVar(&o.cesql, "cesql", "", "Expression in the CloudEvents SQL dialect that the events match, such as \"price > 100\". Empty selects any.")
	flags.Int32Var(&o.rate, "rate", 0, "Maximum number of events per second. Without it, events follow as fast as they are delivered.")
	flags.BoolVar(&o.wait, "wait", false, "Wait until all events are queued for delivery. The exit code is 1 if that fails or is canceled.")
	o.addFlag(command)
	return command
}

// request returns the body of the request. Without a selector it selects all dead letters.
func (o *redriveOptions) request() *eventingv1alpha1.Redrive {
	r := &eventingv1alpha1.Redrive{}
	selector := o.selector
	if o.cesql != "" {
		selector.Filters = []eventingv1.SubscriptionsAPIFilter{{CESQL: o.cesql}}
	}
	if selector.ID != "" || selector.Type != "" || selector.Source != "" || len(selector.Filters) > 0 {
		r.Selector = &selector
	}
	if o.rate > 0 {
		r.Rate = ptr.To(o.rate)
	}
	return r
}

func (o *redriveOptions) run(ctx context.Context, e *environment, kind *kind, name string) error {
	s, err := e.connect()
	if err != nil {
		return err
	}
	client, resource := s.client.EventingV1().RESTClient(), "triggers"
	if kind == subscriptions {
		client, resource = s.client.MessagingV1().RESTClient(), "subscriptions"
	}
	// The client would write its own API version into the request.
	body, err := json.Marshal(o.request())
	if err != nil {
		return err
	}
	run := &eventingv1alpha1.EventRun{}
	err = client.Post().Namespace(s.namespace).Resource(resource).Name(name).SubResource("redrive").SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Into(run)
	if err != nil {
		return err
	}
	if o.wait {
		if run, err = awaitRun(ctx, e, s, run); err != nil {
			return err
		}
	}
	printed, err := o.structured(e.Out, run)
	if err != nil {
		return err
	}
	if !printed {
		if _, err := fmt.Fprintln(e.Out, describeRun(run)); err != nil {
			return err
		}
	}
	if run.Status.Phase == eventingv1alpha1.EventRunFailed {
		return errors.New("the redrive failed")
	}
	return nil
}

// describeRun returns the state of an EventRun as a line of text.
func describeRun(run *eventingv1alpha1.EventRun) string {
	if !run.Ended() {
		return fmt.Sprintf("EventRun %s is in progress", run.Name)
	}
	line := fmt.Sprintf("EventRun %s has ended: %d of %d events are queued for delivery", run.Name, run.Status.Queued, ptr.Deref(run.Status.Total, 0))
	if c := run.Status.Conditions.Get(eventingv1alpha1.EventRunConditionSucceeded); c != nil && c.Message != "" {
		line += "; " + c.Message
	}
	return line
}

// awaitRun returns an EventRun when it has ended.
func awaitRun(ctx context.Context, e *environment, s *session, run *eventingv1alpha1.EventRun) (*eventingv1alpha1.EventRun, error) {
	for {
		now, err := s.client.EventingV1alpha1().EventRuns(run.Namespace).Get(ctx, run.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err), err == nil && now.UID != run.UID:
			return nil, fmt.Errorf("EventRun %s was deleted: the redrive is canceled", run.Name)
		case err != nil:
			return nil, err
		case now.Ended():
			return now, nil
		}
		select {
		case <-e.clock.After(redriveInterval):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
