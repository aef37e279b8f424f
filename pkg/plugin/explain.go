package plugin

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/inspect"
)

// explainOptions are the flags of the command explain.
type explainOptions struct {
	output
	all bool
}

func newExplainCommand(e *environment) *cobra.Command {
	explained := kinds{services, revisions}
	o := &explainOptions{}
	command := &cobra.Command{
		Use:   "explain (service|revision) NAME",
		Short: "Show why a Revision has its number of instances",
		Long: "Shows why a Revision has its number of instances: the load, the limits, what keeps the last instance, the request that activated it, " +
			"the latest decisions, and the latest cold starts by phase. For a Service, it shows the Revisions that have traffic and the latest one.",
		Example: "  kubectl knative explain service hello\n" +
			"  kubectl knative explain revision hello-00001 -o yaml",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: explained.complete(e),
		RunE: func(command *cobra.Command, args []string) error {
			kind, name, err := explained.object(args)
			if err != nil {
				return err
			}
			if err := o.validate(); err != nil {
				return err
			}
			return o.run(command.Context(), e, kind, name)
		},
	}
	command.Flags().BoolVar(&o.all, "all", false, "Show all Revisions of a Service.")
	o.addFlag(command)
	return command
}

// explanationList is a list of explanations in the form of kubectl.
type explanationList struct {
	metav1.TypeMeta `json:",inline"`
	Items           []*servingv1.RevisionExplanation `json:"items"`
}

func (o *explainOptions) run(ctx context.Context, e *environment, kind *kind, name string) error {
	s, err := e.connect()
	if err != nil {
		return err
	}
	if kind == revisions {
		explanation, err := inspect.Explanation(ctx, s.client, s.namespace, name)
		if err != nil {
			return err
		}
		if printed, err := o.structured(e.Out, explanation); printed || err != nil {
			return err
		}
		return writeExplanation(e.Out, explanation, "", o.wide())
	}
	service, err := s.client.ServingV1().Services(s.namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	names := inspect.Routed(service)
	if o.all {
		if names, err = inspect.Revisions(ctx, s.client, s.namespace, name); err != nil {
			return err
		}
	}
	if len(names) == 0 {
		return fmt.Errorf("service %q has no Revision yet", name)
	}
	list := &explanationList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "List"}}
	for _, name := range names {
		explanation, err := inspect.Explanation(ctx, s.client, s.namespace, name)
		if err == nil {
			err = setKind(explanation)
		}
		if err != nil {
			return err
		}
		list.Items = append(list.Items, explanation)
	}
	if printed, err := o.structured(e.Out, list); printed || err != nil {
		return err
	}
	for i, explanation := range list.Items {
		if i > 0 {
			fmt.Fprintln(e.Out)
		}
		if err := writeExplanation(e.Out, explanation, traffic(service, explanation.Name), o.wide()); err != nil {
			return err
		}
	}
	return nil
}

// traffic returns the share of a Revision in the requests of a Service, such as "90 % of Service hello".
func traffic(service *servingv1.Service, revision string) string {
	percent, tags := int64(0), []string(nil)
	for _, target := range service.Status.Traffic {
		if target.RevisionName != revision {
			continue
		}
		if target.Percent != nil {
			percent += *target.Percent
		}
		if target.Tag != "" {
			tags = append(tags, target.Tag)
		}
	}
	text := fmt.Sprintf("%d %% of Service %s", percent, service.Name)
	if len(tags) > 0 {
		text += ", tag " + strings.Join(tags, ", ")
	}
	return text
}

// writeExplanation prints an explanation as text.
func writeExplanation(to io.Writer, e *servingv1.RevisionExplanation, traffic string, wide bool) error {
	title := "Revision " + e.Name
	if traffic != "" {
		title += " (" + traffic + ")"
	}
	fmt.Fprintf(to, "%s: %d of %d instances ready\n", title, e.ActualReplicas, e.DesiredReplicas)
	rows := [][]string{{"  Reason:", inspect.Join(": ", e.Reason, e.Message)}}
	l := &e.Load
	if e.DesiredReplicas > 0 {
		load := fmt.Sprintf("%s %s in %s, %s in %s; one instance per %s, capacity %s", l.Metric,
			inspect.Decimal(&l.StableAverage), seconds(l.StableWindowSeconds), inspect.Decimal(&l.PanicAverage), seconds(l.PanicWindowSeconds), inspect.Decimal(&l.Target), inspect.Decimal(&l.Capacity))
		if l.Panicking {
			load += "; panicking"
		}
		if l.WaitingRequests > 0 {
			load += fmt.Sprintf("; %d requests wait", l.WaitingRequests)
		}
		rows = append(rows, []string{"  Load:", load})
	}
	rows = append(rows, []string{"  Limits:", limits(&e.Limits, wide)})
	for i, reason := range e.LastReplica {
		label := ""
		if i == 0 {
			label = "  Last instance stays:"
		}
		rows = append(rows, []string{label, inspect.Join(": ", reason.Reason, reason.Message)})
	}
	if a := e.Activation; a != nil {
		rows = append(rows, []string{"  Activated by:", a.Request + " at " + inspect.Clock(a.ReceivedTime.Time, wide) + at(a.Gateway)})
	}
	rows = append(rows, []string{"  Decided since:", inspect.Clock(e.Decider.SinceTime.Time, true) + at(e.Decider.Replica)})
	if err := table(to, rows); err != nil {
		return err
	}
	if len(e.Decisions) > 0 {
		rows := [][]string{{"  DECISION", "INSTANCES", "REASON", "MESSAGE"}}
		for i := range e.Decisions {
			d := &e.Decisions[i]
			rows = append(rows, []string{"  " + inspect.Clock(d.DecidedTime.Time, wide), fmt.Sprintf("%d -> %d", d.From, d.To), d.Reason, d.Message})
		}
		if err := table(to, rows); err != nil {
			return err
		}
	}
	if len(e.ColdStarts) > 0 {
		rows := [][]string{{"  COLD START", "TOTAL", "OUTCOME", "PHASES", "REQUEST"}}
		if wide {
			rows[0] = append(rows[0], "INSTANCE", "GATEWAY")
		}
		for i := range e.ColdStarts {
			c := &e.ColdStarts[i]
			var phases []string
			for _, phase := range c.Phases {
				phases = append(phases, phase.Name+" "+inspect.Milliseconds(phase.Milliseconds))
			}
			row := []string{"  " + inspect.Clock(c.ReceivedTime.Time, wide), inspect.Milliseconds(c.TotalMilliseconds), c.Outcome, strings.Join(phases, ", "), c.Request}
			if wide {
				row = append(row, c.Instance, c.Gateway)
			}
			rows = append(rows, row)
		}
		return table(to, rows)
	}
	return nil
}

// at names a replica, if there are several.
func at(replica string) string {
	if replica == "" {
		return ""
	}
	return " at replica " + replica
}

func limits(l *servingv1.RevisionScaleLimits, wide bool) string {
	maximum := "no maximum"
	if l.MaxScale > 0 {
		maximum = fmt.Sprintf("at most %d", l.MaxScale)
	}
	text := fmt.Sprintf("at least %d, %s", l.MinScale, maximum)
	switch {
	case !l.ScaleToZero:
		text += ", never zero"
	case l.ScaleToZeroPodRetentionPeriodSeconds > 0:
		text += ", zero after " + seconds(l.ScaleToZeroPodRetentionPeriodSeconds) + " without demand"
	}
	if wide {
		text += fmt.Sprintf(", starts with %d, activates %d, falls after %s", l.InitialScale, l.ActivationScale, seconds(l.ScaleDownDelaySeconds))
		if l.MaxScaleLimit > 0 {
			text += fmt.Sprintf(", limit of the operator %d", l.MaxScaleLimit)
		}
	}
	return text
}

func seconds(n int64) string { return (time.Duration(n) * time.Second).String() }
