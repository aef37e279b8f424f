package plugin

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/knative-apiserver/knative-apiserver/pkg/inspect"
)

// logsOptions are the flags of the command logs.
type logsOptions struct {
	follow    bool
	since     time.Duration
	tail      int64
	container string
}

func newLogsCommand(e *environment) *cobra.Command {
	logged := kinds{services, revisions}
	o := &logsOptions{}
	command := &cobra.Command{
		Use:   "logs (service|revision) NAME",
		Short: "Print the logs of a Service",
		Long: "Prints the logs of all instances of a Service or Revision; each line begins with the instance in brackets. With --follow, it continues across " +
			"new Revisions and across scaling to zero, until it is interrupted or the object is deleted.",
		Example: "  kubectl knative logs service hello --since 10m\n" +
			"  kubectl knative logs service hello -f --tail 0",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: logged.complete(e),
		RunE: func(command *cobra.Command, args []string) error {
			kind, name, err := logged.object(args)
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
	flags.BoolVarP(&o.follow, "follow", "f", false, "Continue with new lines.")
	flags.DurationVar(&o.since, "since", 0, "Omit lines older than this duration, such as 10m. Zero prints all lines.")
	flags.Int64Var(&o.tail, "tail", -1, "Number of most recent lines of each instance to begin with. -1 prints all lines.")
	flags.StringVarP(&o.container, "container", "c", "", "Name of the container. Empty selects all except init containers.")
	return command
}

func (o *logsOptions) validate() error {
	if o.since != 0 && o.since < time.Second {
		return fmt.Errorf("--since must be at least 1s, not %s", o.since)
	}
	if o.tail < -1 {
		return fmt.Errorf("--tail must be at least -1, not %d", o.tail)
	}
	return nil
}

func (o *logsOptions) run(ctx context.Context, e *environment, kind *kind, name string) error {
	s, err := e.connect()
	if err != nil {
		return err
	}
	printed := false
	l := &inspect.Logs{
		Client: s.client, Namespace: s.namespace, Clock: e.clock, LogOptions: inspect.LogOptions{Since: o.since, Tail: o.tail, Container: o.container},
		Print: func(line []byte) error {
			printed = true
			_, err := e.Out.Write(line)
			return err
		},
	}
	if kind == revisions {
		if o.follow {
			return l.FollowRevision(ctx, name)
		}
		return l.Copy(ctx, name)
	}
	if _, err := s.client.ServingV1().Services(s.namespace).Get(ctx, name, metav1.GetOptions{}); err != nil {
		return err
	}
	if o.follow {
		return l.FollowService(ctx, name)
	}
	names, err := inspect.Revisions(ctx, s.client, s.namespace, name)
	if err != nil {
		return err
	}
	slices.Reverse(names)
	for _, name := range names {
		// A Revision may be deleted meanwhile.
		if err := l.Copy(ctx, name); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	if !printed {
		fmt.Fprintf(e.Err, "No lines in the logs of the instances of Service %q; wait for new ones with --follow.\n", name)
	}
	return nil
}
