package plugin

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/inspect"
)

// topOptions are the flags of the command top.
type topOptions struct {
	output
	allNamespaces, watch bool
	interval             time.Duration
}

func newTopCommand(e *environment) *cobra.Command {
	measured := kinds{services, brokers, triggers, channels, subscriptions}
	o := &topOptions{}
	command := &cobra.Command{
		Use:   "top (services|brokers|triggers|channels|subscriptions)",
		Short: "Show the load of Services, Brokers and Triggers",
		Long: "Shows requests per second, latency and instances of Services, or the events per second of Brokers, Triggers, Channels and Subscriptions.\n\n" +
			"Instances and concurrency are read with the permissions for Services and for revisions/explain. The rates are measured over --interval, " +
			"with the permission to list servicemetrics.serving.knative.dev or eventmetrics.eventing.knative.dev.",
		Example: "  kubectl knative top services\n" +
			"  kubectl knative top triggers --watch",
		Args: cobra.ExactArgs(1),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) (found []cobra.Completion, _ cobra.ShellCompDirective) {
			if len(args) == 0 {
				for _, k := range measured {
					found = append(found, k.singular+"s")
				}
			}
			return found, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(command *cobra.Command, args []string) error {
			kind := measured.named(args[0])
			if kind == nil {
				return fmt.Errorf("unknown type '%.100s'; valid types are %s", args[0], measured)
			}
			if o.interval < 100*time.Millisecond {
				return fmt.Errorf("--interval must be at least 100ms, not %s", o.interval)
			}
			if err := o.validate(); err != nil {
				return err
			}
			s, err := e.connect()
			if err != nil {
				return err
			}
			return (&top{session: s, environment: e, options: o}).run(command.Context(), kind)
		},
	}
	flags := command.Flags()
	flags.BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "Show the objects of all namespaces.")
	flags.BoolVarP(&o.watch, "watch", "w", false, "Continue with new values.")
	flags.DurationVar(&o.interval, "interval", 2*time.Second, "Time over which rates are measured, at least 100ms.")
	o.addFlag(command)
	return command
}

// top measures the load of objects.
type top struct {
	*session
	*environment
	options *topOptions
}

// measurements are the load of objects of a kind. Rates are per second.
type measurements struct {
	// RatesMissing is why rates and latencies are missing. Empty if they are known.
	RatesMissing string              `json:"ratesMissing,omitempty"`
	Services     []serviceLoad       `json:"services,omitempty"`
	Events       []inspect.EventLoad `json:"events,omitempty"`
}

// serviceLoad is the load of a Service.
type serviceLoad struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// RequestLoad is empty if rates are missing.
	inspect.RequestLoad
	Revisions []revisionLoad `json:"revisions,omitempty"`
}

// revisionLoad is the load of a Revision with traffic.
type revisionLoad struct {
	Name    string `json:"name"`
	Ready   int32  `json:"ready"`
	Desired int32  `json:"desired"`
	// Metric is concurrency or rps. Average is its average in the stable window.
	Metric  string `json:"metric"`
	Average string `json:"average"`
	Waiting int64  `json:"waiting"`
	// Unknown is why the load is unknown.
	Unknown string `json:"unknown,omitempty"`
}

// eventKinds are the kinds in the label kind of metrics.
var eventKinds = map[*kind]string{brokers: "Broker", triggers: "Trigger", channels: "Channel", subscriptions: "Subscription"}

func (t *top) run(ctx context.Context, kind *kind) error {
	if t.options.allNamespaces {
		t.namespace = metav1.NamespaceAll
	}
	before, missing, err := t.sample(ctx, kind)
	if err != nil {
		return err
	}
	for first := true; ; first = false {
		if !missing.is() || !first {
			select {
			case <-ctx.Done():
				return nil
			case <-t.clock.After(t.options.interval):
			}
		}
		rates := &inspect.Interval{From: before}
		var m *measurements
		if !missing.is() {
			rates.To, _, err = t.sample(ctx, kind)
			before = rates.To
		}
		if err == nil {
			m, err = t.measure(ctx, kind, rates)
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the user has ended it
		}
		if err != nil {
			return err
		}
		m.RatesMissing = string(missing)
		if first && missing.is() {
			fmt.Fprintln(t.Err, "Rates and latencies are missing: "+m.RatesMissing)
		}
		if err := t.print(m, kind, first); err != nil || !t.options.watch {
			return err
		}
	}
}

// reason is why rates are missing, or empty.
type reason string

func (r reason) is() bool { return r != "" }

// sample returns the metrics of the objects of a kind, or why they are missing if the kind can be measured without them.
func (t *top) sample(ctx context.Context, kind *kind) (*inspect.Sample, reason, error) {
	s := inspect.NewSample(t.clock.Now())
	if kind != services {
		return s, "", s.ReadEvents(ctx, t.client, t.namespace)
	}
	missing, err := inspect.Missing(s.ReadServices(ctx, t.client, t.namespace))
	return s, reason(missing), err
}

// measure returns the load of all objects of a kind.
func (t *top) measure(ctx context.Context, kind *kind, rates *inspect.Interval) (*measurements, error) {
	if kind == services {
		list, err := t.client.ServingV1().Services(t.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		return t.services(ctx, list.Items, rates)
	}
	list, err := kind.list(ctx, t.session, t.namespace)
	if err != nil {
		return nil, err
	}
	objects, err := objectsOf(list)
	if err != nil {
		return nil, err
	}
	m := &measurements{}
	for _, object := range objects {
		m.Events = append(m.Events, rates.Events(eventKinds[kind], object.GetNamespace(), object.GetName()))
	}
	return m, nil
}

// explanationsAtOnce bounds the concurrent requests of a command.
const explanationsAtOnce = 8

func (t *top) services(ctx context.Context, all []servingv1.Service, rates *inspect.Interval) (*measurements, error) {
	m := &measurements{Services: make([]serviceLoad, len(all))}
	asking, ctx := errgroup.WithContext(ctx)
	asking.SetLimit(explanationsAtOnce)
	for i := range all {
		service := &all[i]
		load := &m.Services[i]
		load.Namespace, load.Name = service.Namespace, service.Name
		if rates.To != nil {
			load.RequestLoad = rates.Requests(service.Namespace, service.Name)
		}
		names := inspect.Routed(service)
		load.Revisions = make([]revisionLoad, len(names))
		for j, name := range names {
			asking.Go(func() error {
				explanation, err := inspect.Explanation(ctx, t.client, service.Namespace, name)
				revision := &load.Revisions[j]
				revision.Name = name
				if apierrors.IsNotFound(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsForbidden(err) {
					// The load of others still is known.
					revision.Unknown = err.Error()
					return nil
				}
				if err != nil {
					return err
				}
				revision.Ready, revision.Desired = explanation.ActualReplicas, explanation.DesiredReplicas
				revision.Metric, revision.Average, revision.Waiting = explanation.Load.Metric, inspect.Decimal(&explanation.Load.StableAverage), explanation.Load.WaitingRequests
				return nil
			})
		}
	}
	return m, asking.Wait()
}

// print prints measurements. Tables of a watched command follow each other with an empty line between.
func (t *top) print(m *measurements, kind *kind, first bool) error {
	if printed, err := t.options.structured(t.Out, m); printed || err != nil {
		return err
	}
	if len(m.Services) == 0 && len(m.Events) == 0 {
		fmt.Fprintf(t.Err, "No %ss found.\n", kind.singular)
		return nil
	}
	if !first {
		fmt.Fprintln(t.Out)
	}
	rows := m.rows(kind, t.options.allNamespaces, t.options.wide())
	return table(t.Out, rows)
}

func (m *measurements) rows(kind *kind, namespaces, wide bool) (rows [][]string) {
	header, cells := []string{"NAME"}, func(namespace, name string) []string { return []string{name} }
	if namespaces {
		header, cells = []string{"NAMESPACE", "NAME"}, func(namespace, name string) []string { return []string{namespace, name} }
	}
	if kind == services {
		header = append(header, "REQUESTS/S", "FAILURES/S", "LATENCY", "INSTANCES", "LOAD", "WAITING")
		if wide {
			header = append(header, "REVISION")
		}
		rows = append(rows, header)
		for i := range m.Services {
			rows = append(rows, m.Services[i].rows(cells, wide)...)
		}
		return rows
	}
	consumer := kind == triggers || kind == subscriptions
	if consumer {
		header = append(header, "MATCHED/S", "DELIVERED/S", "RETRIES/S", "DEAD LETTERS/S", "DROPPED/S", "IN FLIGHT", "OLDEST")
	} else {
		header = append(header, "ACCEPTED/S", "MATCHED/S", "OLDEST")
	}
	rows = append(rows, header)
	for i := range m.Events {
		e := &m.Events[i]
		row := cells(e.Namespace, e.Name)
		if consumer {
			row = append(row, inspect.Number(e.MatchedPerSecond), inspect.Number(e.DeliveredPerSecond), inspect.Number(e.RetriesPerSecond), inspect.Number(e.DeadLetteredPerSecond), inspect.Number(e.DroppedPerSecond),
				inspect.Number(e.InFlight))
		} else {
			row = append(row, inspect.Number(e.AcceptedPerSecond), inspect.Number(e.MatchedPerSecond))
		}
		rows = append(rows, append(row, (time.Duration(e.OldestUndeliveredInSec*1000)*time.Millisecond).Round(100*time.Millisecond).String()))
	}
	return rows
}

// rows returns a row with the sums of all Revisions, or a row for each Revision if wide is set.
func (l *serviceLoad) rows(cells func(namespace, name string) []string, wide bool) (rows [][]string) {
	latency := "-"
	if l.LatencyMilliseconds != nil {
		latency = inspect.Number(*l.LatencyMilliseconds) + "ms"
	}
	row := append(cells(l.Namespace, l.Name), optional(l.RequestsPerSecond), optional(l.FailuresPerSecond), latency)
	if !wide {
		return [][]string{append(row, l.total()...)}
	}
	for i := range l.Revisions {
		r := &l.Revisions[i]
		rows = append(rows, append(append(row[:len(row):len(row)], r.cells()...), r.Name))
	}
	if len(rows) == 0 {
		rows = append(rows, append(row, "-", "-", "-", ""))
	}
	return rows
}

// total returns the cells of all Revisions together. Loads are listed, because their metrics may differ.
func (l *serviceLoad) total() []string {
	var ready, desired int32
	var waiting int64
	known, loads := false, ""
	for i := range l.Revisions {
		r := &l.Revisions[i]
		if r.Unknown != "" {
			continue
		}
		known = true
		ready, desired, waiting = ready+r.Ready, desired+r.Desired, waiting+r.Waiting
		if r.Desired > 0 {
			loads = inspect.Join(", ", loads, r.Average+" "+r.Metric)
		}
	}
	if !known {
		return []string{"-", "-", "-"}
	}
	if loads == "" {
		loads = "-"
	}
	return []string{fmt.Sprintf("%d/%d", ready, desired), loads, fmt.Sprint(waiting)}
}

func (r *revisionLoad) cells() []string {
	if r.Unknown != "" {
		return []string{"-", "-", "-"}
	}
	return []string{fmt.Sprintf("%d/%d", r.Ready, r.Desired), r.Average + " " + r.Metric, fmt.Sprint(r.Waiting)}
}

func optional(v *float64) string {
	if v == nil {
		return "-"
	}
	return inspect.Number(*v)
}
