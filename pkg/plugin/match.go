package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
)

// maxEventFile bounds the file with an event, in bytes.
const maxEventFile = 4 << 20

// matchOptions are the flags of the command match.
type matchOptions struct {
	output
	file                      string
	id, source, kind, subject string
}

func newMatchCommand(e *environment) *cobra.Command {
	matched := kinds{triggers}
	o := &matchOptions{}
	command := &cobra.Command{
		Use:   "match [trigger] NAME (--file FILE | --type TYPE)",
		Short: "Show whether a Trigger would match an event",
		Long: "Shows whether an event passes the filters of a Trigger, with the decision of each filter. The event is neither accepted nor delivered. The exit " +
			"code is 1 if it does not match.",
		Example: "  kubectl knative match billing --type com.example.order --source /shop\n" +
			"  kubectl knative match billing -f event.json",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: matched.complete(e),
		RunE: func(command *cobra.Command, args []string) error {
			_, name, err := matched.object(args)
			if err != nil {
				return err
			}
			if err := o.validate(); err != nil {
				return err
			}
			return o.run(command.Context(), e, name, command.InOrStdin())
		},
	}
	flags := command.Flags()
	flags.StringVarP(&o.file, "file", "f", "", "Path of a CloudEvent in the JSON format; - reads stdin.")
	flags.StringVar(&o.kind, "type", "", "Attribute type of the event.")
	flags.StringVar(&o.source, "source", "/kubectl", "Attribute source of the event.")
	flags.StringVar(&o.id, "id", "1", "Attribute id of the event.")
	flags.StringVar(&o.subject, "subject", "", "Attribute subject of the event. Empty omits it.")
	command.MarkFlagsOneRequired("file", "type")
	command.MarkFlagsMutuallyExclusive("file", "type")
	o.addFlag(command)
	return command
}

// errNotMatched is the outcome for an event that does not match.
var errNotMatched = errors.New("the event does not match")

func (o *matchOptions) run(ctx context.Context, e *environment, trigger string, stdin io.Reader) error {
	event, err := o.event(stdin)
	if err != nil {
		return err
	}
	s, err := e.connect()
	if err != nil {
		return err
	}
	match := &eventingv1.TriggerMatch{Spec: eventingv1.TriggerMatchSpec{Event: runtime.RawExtension{Raw: event}}}
	match.Namespace, match.Name = s.namespace, trigger
	err = s.client.EventingV1().RESTClient().Post().Namespace(s.namespace).Resource("triggers").Name(trigger).SubResource("match").Body(match).Do(ctx).Into(match)
	if err != nil {
		return err
	}
	printed, err := o.structured(e.Out, match)
	if err != nil {
		return err
	}
	if !printed {
		if err := o.write(e.Out, &match.Status); err != nil {
			return err
		}
	}
	if !match.Status.Matched {
		return errNotMatched
	}
	return nil
}

// event returns the event in the JSON format.
func (o *matchOptions) event(stdin io.Reader) ([]byte, error) {
	if o.file == "" {
		attributes := map[string]string{"specversion": "1.0", "id": o.id, "source": o.source, "type": o.kind}
		if o.subject != "" {
			attributes["subject"] = o.subject
		}
		return json.Marshal(attributes)
	}
	from := stdin
	if o.file != "-" {
		file, err := os.Open(o.file)
		if err != nil {
			return nil, fmt.Errorf("--file: %w", err)
		}
		defer file.Close()
		from = file
	}
	event, err := io.ReadAll(io.LimitReader(from, maxEventFile+1))
	if err != nil {
		return nil, fmt.Errorf("--file: %w", err)
	}
	if len(event) > maxEventFile {
		return nil, fmt.Errorf("--file must have at most %d bytes", maxEventFile)
	}
	if event = bytes.TrimSpace(event); !json.Valid(event) {
		return nil, errors.New("--file must have a CloudEvent in the JSON format")
	}
	return event, nil
}

// write prints the decisions.
func (o *matchOptions) write(to io.Writer, s *eventingv1.TriggerMatchStatus) error {
	decision := "matches"
	if !s.Matched {
		decision = "does not match: " + s.Reason
	}
	rows := [][]string{{"The event " + decision}}
	if err := table(to, rows); err != nil || len(s.Filters) == 0 {
		return err
	}
	rows = [][]string{{"FILTER", "RESULT", "REASON"}}
	for i := range s.Filters {
		f := &s.Filters[i]
		rows = append(rows, []string{f.Field, f.Result, f.Reason})
	}
	return table(to, rows)
}
