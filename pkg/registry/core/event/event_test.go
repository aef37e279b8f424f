package event

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func complete() *corev1.Event {
	now := time.Now()
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "hello.1", Namespace: "ns"},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "serving.knative.dev/v1", Kind: "Service", Namespace: "ns", Name: "hello", UID: "u", ResourceVersion: "7", FieldPath: "spec",
		},
		Reason: "Created", Message: "Created a Route\n", Type: corev1.EventTypeNormal, Count: 3,
		Source:         corev1.EventSource{Component: "service-controller", Host: "h"},
		FirstTimestamp: metav1.NewTime(now.Add(-10 * time.Minute)),
		LastTimestamp:  metav1.NewTime(now.Add(-2 * time.Minute)),
	}
}

func TestFieldSelectors(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := AddFieldLabels(scheme); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		matches, unknown bool
	}{
		"involvedObject.kind=Service":                      {matches: true},
		"involvedObject.kind=Route":                        {},
		"involvedObject.namespace=ns":                      {matches: true},
		"involvedObject.name=hello,involvedObject.uid=u":   {matches: true},
		"involvedObject.name=hello,involvedObject.uid=v":   {},
		"involvedObject.apiVersion=serving.knative.dev/v1": {matches: true},
		"involvedObject.resourceVersion=7":                 {matches: true},
		"involvedObject.fieldPath=spec":                    {matches: true},
		"reason=Created":                                   {matches: true},
		"reportingComponent=service-controller":            {},
		"source=service-controller":                        {matches: true},
		"type!=Normal":                                     {},
		"metadata.name=hello.1,metadata.namespace=ns":      {matches: true},
		"message=x": {unknown: true},
	}
	for text, test := range tests {
		t.Run(text, func(t *testing.T) {
			selector, err := fields.ParseSelector(text)
			if err != nil {
				t.Fatal(err)
			}
			selector, err = selector.Transform(func(label, value string) (string, string, error) {
				return scheme.ConvertFieldLabel(corev1.SchemeGroupVersion.WithKind("Event"), label, value)
			})
			if test.unknown {
				if err == nil || err.Error() != "field label not supported: message" {
					t.Errorf("error is %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			predicate := matching(labels.Everything(), selector)
			got, err := predicate.Matches(complete())
			if err != nil || got != test.matches {
				t.Errorf("matches is %v, %v; want %v", got, err, test.matches)
			}
		})
	}
}

// The field selector source also finds an Event with the newer field for its reporter.
func TestSourceIsTheReporterWhereThereIsNone(t *testing.T) {
	event := complete()
	event.Source, event.ReportingController = corev1.EventSource{}, "service-controller"
	if got := selectable(event)["source"]; got != "service-controller" {
		t.Errorf("source is %q", got)
	}
}

func TestValidate(t *testing.T) {
	tests := map[string]struct {
		event, involved string
		bad             bool
	}{
		"the object's namespace":                        {event: "ns", involved: "ns"},
		"another namespace":                             {event: "ns", involved: "other", bad: true},
		"an object without a namespace, in default":     {event: "default"},
		"an object without a namespace, in another one": {event: "ns", bad: true},
		"an object of default, in another one":          {event: "ns", involved: "default", bad: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			event := complete()
			event.Namespace, event.InvolvedObject.Namespace = test.event, test.involved
			rules := newStrategy(nil)
			for verb, faults := range map[string]field.ErrorList{
				"create": rules.Validate(t.Context(), event), "update": rules.ValidateUpdate(t.Context(), event, complete()),
			} {
				bad := len(faults) == 1 && faults[0].Field == "involvedObject.namespace" && faults[0].Type == field.ErrorTypeInvalid
				if bad != test.bad || len(faults) > 0 && !bad {
					t.Errorf("%s: faults are %v", verb, faults)
				}
			}
		})
	}
}

func TestTable(t *testing.T) {
	series := complete()
	series.Count, series.FirstTimestamp, series.LastTimestamp = 0, metav1.Time{}, metav1.Time{}
	series.EventTime = metav1.NewMicroTime(time.Now().Add(-3 * time.Hour))
	series.Series = &corev1.EventSeries{Count: 8, LastObservedTime: metav1.NewMicroTime(time.Now().Add(-5 * time.Minute))}
	sparse := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e"}, InvolvedObject: corev1.ObjectReference{Kind: "Service"}, ReportingController: "c"}

	list := &corev1.EventList{Items: []corev1.Event{*complete(), *series, *sparse}}
	table, err := newTableConvertor().ConvertToTable(t.Context(), list, nil)
	if err != nil {
		t.Fatal(err)
	}
	var shown, all []string
	for _, c := range table.ColumnDefinitions {
		all = append(all, c.Name)
		if c.Priority == 0 {
			shown = append(shown, c.Name)
		}
	}
	if diff := cmp.Diff([]string{"Last Seen", "Type", "Reason", "Object", "Message"}, shown); diff != "" {
		t.Errorf("columns (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"Last Seen", "Type", "Reason", "Object", "Subobject", "Source", "Message", "First Seen", "Count", "Name"}, all); diff != "" {
		t.Errorf("wide columns (-want +got):\n%s", diff)
	}
	var rows [][]any
	for _, row := range table.Rows {
		rows = append(rows, row.Cells)
	}
	want := [][]any{
		{"2m", "Normal", "Created", "service/hello", "spec", "service-controller, h", "Created a Route", "10m", int64(3), "hello.1"},
		{"5m", "Normal", "Created", "service/hello", "spec", "service-controller, h", "Created a Route", "3h", int64(8), "hello.1"},
		{"<unknown>", "", "", "service", "", "c", "", "<unknown>", int64(1), "e"},
	}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
}
