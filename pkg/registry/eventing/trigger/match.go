package trigger

import (
	"context"
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry"
)

// Matcher decides which events pass the filters of Triggers.
type Matcher interface {
	// Match returns the decision about an event in the JSON format. The message of its error describes the fault of the event; it follows
	// the word "event".
	Match(ctx context.Context, t *eventingv1.Trigger, event []byte) (*eventingv1.TriggerMatchStatus, error)
	// ToJSON returns the event of an HTTP request in any mode in the JSON format, without its data. Errors are as for Match.
	ToJSON(header http.Header, body []byte) ([]byte, error)
	// Unmatched returns the number of last events of the Broker of a Trigger that are known, if none of them passes its filters, and 0 if one
	// does or if that is not known at once.
	Unmatched(ctx context.Context, t *eventingv1.Trigger) (events int)
}

// LateMatcher is a Matcher that is set after the API is served, or never. The zero value has none.
type LateMatcher = registry.Late[Matcher]

// ErrNoMatcher is the error of requests before the matcher is set.
var ErrNoMatcher = apierrors.NewServiceUnavailable("this server is starting; retry")

// observe returns a warning if a Trigger is new or has other filters, and no recent event would match.
func observe(ctx context.Context, late *LateMatcher, t, old *eventingv1.Trigger) []string {
	if old != nil && equality.Semantic.DeepEqual(t.Spec.Filter, old.Spec.Filter) && equality.Semantic.DeepEqual(t.Spec.Filters, old.Spec.Filters) {
		return nil
	}
	matcher := late.Load()
	if matcher == nil {
		return nil
	}
	n := (*matcher).Unmatched(ctx, t)
	if n == 0 {
		return nil
	}
	path := field.NewPath("spec", "filters")
	if len(t.Spec.Filters) == 0 {
		path = field.NewPath("spec", "filter")
	}
	return []string{fmt.Sprintf("%s: 0 of the last %d events of the Broker '%s' would match", path, n, t.BrokerName().Name)}
}

// matchREST is the subresource match.
type matchREST struct {
	triggers rest.Getter
	matcher  *LateMatcher
}

var (
	_ rest.NamedCreater   = &matchREST{}
	_ rest.TableConvertor = &matchREST{}
)

// NewMatch returns the subresource match of Triggers.
func NewMatch(triggers rest.Getter, matcher *LateMatcher) rest.Storage {
	return &matchREST{triggers: triggers, matcher: matcher}
}

// New returns an empty object.
func (*matchREST) New() runtime.Object { return &eventingv1.TriggerMatch{} }

// Destroy does nothing: the resource Triggers owns the store.
func (*matchREST) Destroy() {}

// Create answers whether an event passes the filters of a Trigger. Nothing is created.
func (m *matchREST) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object, error) {
	match, err := registry.BodyAs[*eventingv1.TriggerMatch](obj, "Trigger", name)
	if err != nil {
		return nil, err
	}
	trigger, err := registry.GetAs[*eventingv1.Trigger](ctx, m.triggers, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if validate != nil {
		if err := validate(ctx, obj); err != nil {
			return nil, err
		}
	}
	invalid := func(err *field.Error) error {
		return apierrors.NewInvalid(eventingv1.SchemeGroupVersion.WithKind("TriggerMatch").GroupKind(), name, field.ErrorList{err})
	}
	path := field.NewPath("spec", "event")
	if raw := match.Spec.Event.Raw; len(raw) == 0 || string(raw) == "null" {
		return nil, invalid(field.Required(path, "must be a CloudEvent in the JSON format"))
	}
	matcher := m.matcher.Load()
	if matcher == nil {
		return nil, ErrNoMatcher
	}
	status, err := (*matcher).Match(ctx, trigger, match.Spec.Event.Raw)
	switch {
	case ctx.Err() != nil:
		return nil, apierrors.NewTimeoutError("the request ended before the filters were evaluated", 0)
	case err != nil:
		return nil, invalid(field.Invalid(path, field.OmitValueType{}, err.Error()))
	}
	return &eventingv1.TriggerMatch{
		ObjectMeta: metav1.ObjectMeta{Namespace: trigger.Namespace, Name: trigger.Name}, Spec: match.Spec, Status: *status,
	}, nil
}

// matchColumns are the columns of a match as a table, which has a row for the Trigger and one for each filter.
var matchColumns = []metav1.TableColumnDefinition{
	{Name: "Filter", Type: "string", Description: "The filter or compared attribute by its place in the Trigger. The first row is the Trigger as a whole."},
	{Name: "Result", Type: "string", Description: "Passed, NotPassed, Ignored or Unknown."},
	{Name: "Reason", Type: "string", Description: "Why the event does not pass."},
}

// ConvertToTable renders the decisions, first the decision of the Trigger.
func (*matchREST) ConvertToTable(_ context.Context, object runtime.Object, tableOptions runtime.Object) (*metav1.Table, error) {
	match, ok := object.(*eventingv1.TriggerMatch)
	if !ok {
		return nil, fmt.Errorf("the object of a match is a %T", object)
	}
	table := &metav1.Table{}
	if options, ok := tableOptions.(*metav1.TableOptions); !ok || !options.NoHeaders {
		table.ColumnDefinitions = matchColumns
	}
	row := func(cells ...any) {
		// Each row has only the metadata of the object.
		about := &eventingv1.TriggerMatch{ObjectMeta: match.ObjectMeta}
		table.Rows = append(table.Rows, metav1.TableRow{Cells: cells, Object: runtime.RawExtension{Object: about}})
	}
	whole := eventingv1.FilterPassed
	if !match.Status.Matched {
		whole = eventingv1.FilterNotPassed
	}
	row("Trigger "+match.Namespace+"/"+match.Name, whole, match.Status.Reason)
	for _, decision := range match.Status.Filters {
		row(decision.Field, decision.Result, decision.Reason)
	}
	return table, nil
}
