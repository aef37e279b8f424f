package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	"github.com/knative-apiserver/knative-apiserver/pkg/inspect"
)

// deadLettersOptions are the flags of the command deadletters.
type deadLettersOptions struct {
	output
	selector, fieldSelector string
}

func newDeadLettersCommand(e *environment) *cobra.Command {
	o := &deadLettersOptions{}
	command := &cobra.Command{
		Use:   "deadletters [NAME]",
		Short: "Show events that could not be delivered",
		Long: "Lists the events of the dead letter store, the oldest first, or shows one of them with its data. They are the events that could not be delivered to " +
			"Triggers and Subscriptions without a dead letter sink.",
		Example: "  kubectl knative deadletters -l eventing.knative.dev/trigger=billing\n" +
			"  kubectl knative deadletters --field-selector event.id=1001 -o wide",
		Args: cobra.MaximumNArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			if len(args) > 0 && (o.selector != "" || o.fieldSelector != "") {
				return errors.New("a dead letter is selected by NAME or by selectors, not by both")
			}
			s, err := e.connect()
			if err != nil {
				return err
			}
			if len(args) == 0 {
				return o.list(command.Context(), e, s)
			}
			letter, err := inspect.DeadLetter(command.Context(), s.client, s.namespace, args[0])
			if err != nil {
				return err
			}
			if printed, err := o.structured(e.Out, letter); printed || err != nil {
				return err
			}
			return writeDeadLetter(e.Out, letter)
		},
	}
	flags := command.Flags()
	flags.StringVarP(&o.selector, "selector", "l", "", "Label selector, such as eventing.knative.dev/broker=orders.")
	flags.StringVar(&o.fieldSelector, "field-selector", "", "Field selector, such as event.type=com.example.order or lastCode=503.")
	o.addFlag(command)
	return command
}

// list prints dead letters page by page, so that a table of any number of them needs the memory of one page. JSON and YAML have one list.
func (o *deadLettersOptions) list(ctx context.Context, e *environment, s *session) error {
	options := metav1.ListOptions{LabelSelector: o.selector, FieldSelector: o.fieldSelector}
	all := &eventingv1alpha1.DeadLetterList{}
	structured := o.format == formatJSON || o.format == formatYAML
	for printed := 0; ; {
		list, err := inspect.DeadLetters(ctx, s.client, s.namespace, options)
		if err != nil {
			return err
		}
		if structured {
			all.Items = append(all.Items, list.Items...)
		} else if err := table(e.Out, o.rows(list.Items, e.clock.Now(), printed == 0)); err != nil {
			return err
		}
		printed += len(list.Items)
		if options.Continue = list.Continue; options.Continue != "" {
			continue
		}
		if structured {
			_, err = o.structured(e.Out, all)
		} else if printed == 0 {
			fmt.Fprintf(e.Err, "No dead letters found in namespace %s.\n", s.namespace)
		}
		return err
	}
}

// rows returns the cells of dead letters, as the server's tables have them.
func (o *deadLettersOptions) rows(letters []eventingv1alpha1.DeadLetter, now time.Time, header bool) (rows [][]string) {
	if header && len(letters) > 0 {
		rows = append(rows, []string{"NAME", "ID", "TYPE", "OBJECT", "ATTEMPTS", "CODE", "AGE"})
		if o.wide() {
			rows[0] = append(rows[0], "SOURCE", "SUBSCRIBER", "ERROR")
		}
	}
	for i := range letters {
		d := &letters[i]
		code := "-"
		if d.LastCode != 0 {
			code = strconv.Itoa(int(d.LastCode))
		}
		row := []string{
			d.Name, d.Event.ID, d.Event.Type, inspect.Consumer(d), strconv.Itoa(int(d.Attempts)), code,
			duration.HumanDuration(now.Sub(d.CreationTimestamp.Time)),
		}
		if o.wide() {
			row = append(row, d.Event.Source, d.Subscriber, d.LastError)
		}
		rows = append(rows, row)
	}
	return rows
}

// writeDeadLetter prints one dead letter with its event.
func writeDeadLetter(to io.Writer, d *eventingv1alpha1.DeadLetter) error {
	rows := [][]string{
		{"Event:", d.Event.ID + ", type " + d.Event.Type + ", source " + d.Event.Source},
		{"Accepted by:", d.Stream.Kind + " " + d.Stream.Name},
		{"Failed for:", inspect.Consumer(d)},
		{"Address:", d.Subscriber},
		{"Failure:", inspect.Failure(d)},
	}
	if d.LastResponse != "" {
		rows = append(rows, []string{"Response:", d.LastResponse})
	}
	for _, name := range slices.Sorted(maps.Keys(d.Event.Attributes)) {
		rows = append(rows, []string{"Attribute " + name + ":", d.Event.Attributes[name]})
	}
	if err := table(to, rows); err != nil {
		return err
	}
	data := d.Event.Data
	if len(d.Event.DataBase64) > 0 {
		data = fmt.Sprintf("%d bytes that are not text; -o yaml prints them in base64", len(d.Event.DataBase64))
	}
	lines := strings.Split(data, "\n")
	for i := range lines {
		lines[i] = inspect.Visible(lines[i])
	}
	_, err := fmt.Fprintf(to, "Data:\n%s\n", strings.Join(lines, "\n"))
	return err
}
