package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/knative-apiserver/knative-apiserver/pkg/inspect"
)

// tailOptions are the flags of the command tail.
type tailOptions struct {
	filter string
	data   bool
	format string
}

func newTailCommand(e *environment) *cobra.Command {
	tailed := kinds{brokers}
	o := &tailOptions{}
	command := &cobra.Command{
		Use:   "tail [broker] NAME",
		Short: "Show the events of a Broker live",
		Long: "Shows the events that a Broker accepts from now on, until it is interrupted or the Broker is deleted: a line for each event, or its JSON. A busy " +
			"Broker is shown in part; the number of events that are not shown is printed to stderr.",
		Example: "  kubectl knative tail orders --filter \"type LIKE 'com.example.%'\"\n" +
			"  kubectl knative tail orders --data -o json",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: tailed.complete(e),
		RunE: func(command *cobra.Command, args []string) error {
			_, name, err := tailed.object(args)
			if err != nil {
				return err
			}
			if o.format != "" && o.format != formatJSON && o.format != formatWide {
				return fmt.Errorf("unknown output format '%.100s'; valid formats are json, wide", o.format)
			}
			return o.run(command.Context(), e, name)
		},
	}
	flags := command.Flags()
	flags.StringVar(&o.filter, "filter", "", "CloudEvents SQL expression. Empty shows all events.")
	flags.BoolVar(&o.data, "data", false, "Show the data of events too, which needs the permission to get brokers/data.")
	flags.StringVarP(&o.format, "output", "o", "", "Output format. One of: json (the lines of the server), wide.")
	return command
}

func (o *tailOptions) run(ctx context.Context, e *environment, broker string) error {
	s, err := e.connect()
	if err != nil {
		return err
	}
	request := s.client.EventingV1().RESTClient().Get().Namespace(s.namespace).Resource("brokers").Name(broker).SubResource("tail")
	if o.filter != "" {
		request.Param("filter", o.filter)
	}
	if o.data {
		request.Param("data", "true")
	}
	stream, err := request.Stream(ctx)
	if err != nil {
		return err
	}
	defer stream.Close()
	err = inspect.EachLine(stream, func(line []byte) error { return o.print(e, line) })
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// tailLine is a line of a tail. One field is set.
type tailLine struct {
	StartedAt  *time.Time                 `json:"startedAt"`
	AcceptedAt *time.Time                 `json:"acceptedAt"`
	Event      map[string]json.RawMessage `json:"event"`
	Dropped    map[string]int64           `json:"dropped"`
	Gap        string                     `json:"gap"`
	End        string                     `json:"end"`
}

// print prints a line of the server.
func (o *tailOptions) print(e *environment, line []byte) error {
	if o.format == formatJSON {
		_, err := e.Out.Write(line)
		return err
	}
	var l tailLine
	if err := json.Unmarshal(line, &l); err != nil {
		return fmt.Errorf("read line of the tail: %w", err)
	}
	switch {
	case l.Event != nil:
		_, err := fmt.Fprintln(e.Out, inspect.Visible(o.describe(&l)))
		return err
	case l.Dropped != nil:
		for reason, n := range l.Dropped {
			fmt.Fprintf(e.Err, "%d events are not shown: %s\n", n, inspect.Visible(reason))
		}
	case l.Gap != "" || l.End != "":
		fmt.Fprintln(e.Err, inspect.Visible(inspect.Join(": ", l.Gap, l.End)))
	case l.StartedAt != nil:
		fmt.Fprintln(e.Err, "Waiting for events.")
	}
	return nil
}

// describe returns an event in one line.
func (o *tailOptions) describe(l *tailLine) string {
	attribute := func(name string) string {
		var text string
		if json.Unmarshal(l.Event[name], &text) != nil {
			return string(l.Event[name])
		}
		return text
	}
	text := ""
	if l.AcceptedAt != nil {
		text = inspect.Clock(*l.AcceptedAt, o.format == formatWide) + "  "
	}
	text += attribute("id") + "  type " + attribute("type") + "  source " + attribute("source")
	if subject := attribute("subject"); subject != "" {
		text += "  subject " + subject
	}
	for _, name := range []string{"data", "data_base64"} {
		if data := l.Event[name]; len(data) > 0 {
			text += "  " + name + " " + string(data)
		}
	}
	return text
}
