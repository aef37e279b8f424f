package plugin

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	"github.com/knative-apiserver/knative-apiserver/pkg/inspect"
)

// replayOptions are the flags of the command replay.
type replayOptions struct {
	runOptions
	from, to, trigger string
}

func newReplayCommand(e *environment) *cobra.Command {
	replayed := kinds{brokers}
	o := &replayOptions{}
	command := &cobra.Command{
		Use:   "replay [broker] NAME",
		Short: "Deliver the archived events of a Broker again",
		Long: "Delivers events from the archive of a Broker again, in the order in which the Broker accepted them: to all Triggers whose filters match, or to one Trigger. " +
			"The events remain in the archive. The EventRun broker-NAME, or trigger-NAME of the Trigger, shows the progress, and deleting it cancels the replay.",
		Example: "  kubectl knative replay broker/orders --from 2h --trigger analytics --wait\n" +
			"  kubectl knative replay orders --from 2026-01-02T15:00:00Z --to 2026-01-02T16:00:00Z --type com.example.order --rate 50",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: replayed.complete(e),
		RunE: func(command *cobra.Command, args []string) error {
			_, name, err := replayed.object(args)
			if err != nil {
				return err
			}
			if err := o.check(command); err != nil {
				return err
			}
			return o.run(command.Context(), e, name)
		},
	}
	flags := command.Flags()
	flags.StringVar(&o.from, "from", "", "Time of acceptance of the first event, in seconds: RFC 3339, such as 2026-01-02T15:04:05Z, or a duration before now, such as 2h. Empty selects the beginning of the archive.")
	flags.StringVar(&o.to, "to", "", "Time before which events were accepted: RFC 3339, or a duration before now. Empty selects now.")
	flags.StringVar(&o.trigger, "trigger", "", "Trigger of the Broker that alone gets the events, whether or not its filters match. Empty selects all Triggers whose filters match.")
	o.addFlags(command)
	return command
}

// timeOf returns the time of a flag, or nil if it is empty.
func timeOf(flag, value string, now time.Time) (*metav1.Time, error) {
	if value == "" {
		return nil, nil
	}
	if before, err := time.ParseDuration(value); err == nil && before >= 0 {
		return ptr.To(metav1.NewTime(now.Add(-before))), nil
	}
	parsed, err := time.Parse(time.RFC3339, value)
	if err != nil {
		return nil, fmt.Errorf("--%s must be a time such as 2026-01-02T15:04:05Z, or a duration such as 2h, not '%.100s'", flag, value)
	}
	return ptr.To(metav1.NewTime(parsed)), nil
}

// request returns the body of the request.
func (o *replayOptions) request(now time.Time) (*eventingv1alpha1.Replay, error) {
	from, err := timeOf("from", o.from, now)
	if err != nil {
		return nil, err
	}
	to, err := timeOf("to", o.to, now)
	if err != nil {
		return nil, err
	}
	return &eventingv1alpha1.Replay{From: from, To: to, Selector: o.selector(), Rate: o.rate(), Trigger: o.trigger}, nil
}

func (o *replayOptions) run(ctx context.Context, e *environment, broker string) error {
	asked, err := o.request(e.clock.Now())
	if err != nil {
		return err
	}
	s, err := e.connect()
	if err != nil {
		return err
	}
	run, err := inspect.Replay(ctx, s.client, s.namespace, broker, asked)
	if err != nil {
		return err
	}
	return o.report(ctx, e, s, run)
}
