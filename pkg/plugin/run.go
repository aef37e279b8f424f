package plugin

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	"github.com/knative-apiserver/knative-apiserver/pkg/inspect"
)

// runInterval is the time between reads of the progress of an EventRun.
const runInterval = time.Second

// runOptions are the flags of the commands that create EventRuns.
type runOptions struct {
	output
	chosen eventingv1alpha1.EventSelector
	cesql  string
	perSec int32
	wait   bool
}

// addFlags adds the flags to a command.
func (o *runOptions) addFlags(command *cobra.Command) {
	flags := command.Flags()
	flags.StringVar(&o.chosen.ID, "id", "", "Attribute id of the events. Empty selects any.")
	flags.StringVar(&o.chosen.Type, "type", "", "Attribute type of the events. Empty selects any.")
	flags.StringVar(&o.chosen.Source, "source", "", "Attribute source of the events. Empty selects any.")
	flags.StringVar(&o.cesql, "cesql", "", "Expression in the CloudEvents SQL dialect that the events match, such as \"price > 100\". Empty selects any.")
	flags.Int32Var(&o.perSec, "rate", 0, "Maximum number of events per second. Without it, events follow as fast as they are delivered.")
	flags.BoolVar(&o.wait, "wait", false, "Wait until all events are queued for delivery. The exit code is 1 if that fails or is canceled.")
	o.addFlag(command)
}

// check returns an error for invalid flags of a command.
func (o *runOptions) check(command *cobra.Command) error {
	if err := o.validate(); err != nil {
		return err
	}
	if o.perSec < 1 && command.Flags().Changed("rate") {
		return fmt.Errorf("--rate must be at least 1, not %d", o.perSec)
	}
	return nil
}

// selector returns the selector of the flags, or nil if they select all events.
func (o *runOptions) selector() *eventingv1alpha1.EventSelector {
	selector := o.chosen
	if o.cesql != "" {
		selector.Filters = []eventingv1.SubscriptionsAPIFilter{{CESQL: o.cesql}}
	}
	if selector.ID == "" && selector.Type == "" && selector.Source == "" && len(selector.Filters) == 0 {
		return nil
	}
	return &selector
}

// rate returns the maximum number of events per second, or nil without one.
func (o *runOptions) rate() *int32 {
	if o.perSec < 1 {
		return nil
	}
	return ptr.To(o.perSec)
}

// report prints an EventRun that was created, when it has ended if --wait is set.
func (o *runOptions) report(ctx context.Context, e *environment, s *session, run *eventingv1alpha1.EventRun) (err error) {
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
		return fmt.Errorf("EventRun %s failed", run.Name)
	}
	return nil
}

// describeRun returns the state of an EventRun as a line of text.
func describeRun(run *eventingv1alpha1.EventRun) string {
	if !run.Ended() {
		return fmt.Sprintf("EventRun %s is in progress", run.Name)
	}
	line := fmt.Sprintf("EventRun %s has ended: %s events are queued for delivery", run.Name, inspect.Queued(run))
	return inspect.Join("; ", line, inspect.RunMessage(run))
}

// awaitRun returns an EventRun when it has ended.
func awaitRun(ctx context.Context, e *environment, s *session, run *eventingv1alpha1.EventRun) (*eventingv1alpha1.EventRun, error) {
	for {
		now, err := s.client.EventingV1alpha1().EventRuns(run.Namespace).Get(ctx, run.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err), err == nil && now.UID != run.UID:
			return nil, fmt.Errorf("EventRun %s was deleted: it is canceled", run.Name)
		case err != nil:
			return nil, err
		case now.Ended():
			return now, nil
		}
		select {
		case <-e.clock.After(runInterval):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
