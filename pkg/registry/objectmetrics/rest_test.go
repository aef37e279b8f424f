package objectmetrics

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"

	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	servingv1beta1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1beta1"
	"github.com/knative-apiserver/knative-apiserver/pkg/objectmetrics"
)

// reader returns what it has, for each namespace.
type reader struct {
	replicas   []objectmetrics.Replica
	incomplete []string
	err        error
}

func (r *reader) Read(context.Context, string) ([]objectmetrics.Replica, []string, error) {
	return r.replicas, r.incomplete, r.err
}

func entry(kind, namespace, name string, values map[objectmetrics.Field]float64) objectmetrics.Entry {
	return objectmetrics.Entry{Object: objectmetrics.Object{Kind: kind, Namespace: namespace, Name: name}, Values: values}
}

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// two are the metrics of two replicas.
func two() *reader {
	type values = map[objectmetrics.Field]float64
	return &reader{replicas: []objectmetrics.Replica{
		{Name: "a", Start: start, Entries: []objectmetrics.Entry{
			entry("Service", "shop", "web", values{objectmetrics.Requests: 1}),
			entry("Service", "shop", "hello", values{objectmetrics.Requests: 5, objectmetrics.Failures: 1, objectmetrics.Responses: 4, objectmetrics.Seconds: 0.5}),
			entry("Trigger", "shop", "bill", values{objectmetrics.Matched: 5, objectmetrics.Delivered: 4, objectmetrics.Oldest: 1.5}),
			entry("Unknown", "shop", "x", values{objectmetrics.Matched: 5}),
		}},
		{Name: "b", Start: start, Entries: []objectmetrics.Entry{
			entry("Service", "shop", "hello", values{objectmetrics.Requests: 3}),
			entry("Broker", "shop", "orders", values{objectmetrics.Accepted: 7}),
		}},
	}}
}

func late(r Reader) *Late {
	l := &Late{}
	l.Set(r)
	return l
}

// namesOf returns the names of the items of a list.
func namesOf(t *testing.T, list runtime.Object) (names []string) {
	t.Helper()
	items, err := meta.ExtractList(list)
	if err != nil {
		t.Fatal(err)
	}
	for _, item := range items {
		names = append(names, item.(metav1.Object).GetName())
	}
	return names
}

// TestServices has an entry for each replica.
func TestServices(t *testing.T) {
	r, ctx := NewServices(late(two())), request.WithNamespace(t.Context(), "shop")
	got, err := r.Get(ctx, "hello", nil)
	if err != nil {
		t.Fatal(err)
	}
	replica := func(name string, requests, failures, responses, milliseconds int64) servingv1beta1.ServiceMetricsReplica {
		return servingv1beta1.ServiceMetricsReplica{Name: name, StartTime: metav1.NewMicroTime(start), Requests: requests, Failures: failures, Responses: responses, DurationMilliseconds: milliseconds}
	}
	if diff := cmp.Diff([]servingv1beta1.ServiceMetricsReplica{replica("a", 5, 1, 4, 500), replica("b", 3, 0, 0, 0)}, got.(*servingv1beta1.ServiceMetrics).Replicas); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if _, err := r.Get(ctx, "bill", nil); !apierrors.IsNotFound(err) {
		t.Errorf("a Trigger is a Service: %v", err)
	}
	table, err := r.ConvertToTable(ctx, got, nil)
	if err != nil || fmt.Sprint(table.Rows[0].Cells) != "[hello 8 1 125]" {
		t.Errorf("the table is %+v, %v", table, err)
	}
}

// TestEvents names objects by their kind.
func TestEvents(t *testing.T) {
	r, ctx := NewEvents(late(two())), request.WithNamespace(t.Context(), "shop")
	list, err := r.List(ctx, nil)
	if err != nil || !slices.Equal(namesOf(t, list), []string{"broker-orders", "trigger-bill"}) {
		t.Fatalf("the list is %v, %v", list, err)
	}
	bill := list.(*eventingv1alpha1.EventMetricsList).Items[1]
	if bill.Object.Kind != "Trigger" || bill.Object.Name != "bill" || bill.Replicas[0].OldestUndeliveredMilliseconds != 1500 {
		t.Errorf("the Trigger is %+v", bill)
	}
	table, err := r.ConvertToTable(ctx, list, nil)
	if err != nil || fmt.Sprint(table.Rows[1].Cells[:4]) != "[trigger-bill 0 5 4]" {
		t.Errorf("the table is %+v, %v", table, err)
	}
}

// TestList selects and pages.
func TestList(t *testing.T) {
	r, ctx := NewEvents(late(two())), request.WithNamespace(t.Context(), "shop")
	for name, test := range map[string]struct {
		options metainternalversion.ListOptions
		want    []string
	}{
		"kind":   {metainternalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector(eventingv1alpha1.EventMetricsObjectKindField, "Broker")}, []string{"broker-orders"}},
		"name":   {metainternalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", "trigger-bill")}, []string{"trigger-bill"}},
		"labels": {metainternalversion.ListOptions{LabelSelector: labels.SelectorFromSet(labels.Set{"a": "b"})}, nil},
		"limit":  {metainternalversion.ListOptions{Limit: 2}, []string{"broker-orders", "trigger-bill"}},
	} {
		list, err := r.List(ctx, &test.options)
		if err != nil || !slices.Equal(namesOf(t, list), test.want) {
			t.Errorf("%s: %v, %v", name, list, err)
		}
	}
	var names []string
	options := &metainternalversion.ListOptions{Limit: 1}
	for page := 0; page == 0 || options.Continue != ""; page++ {
		list, err := r.List(ctx, options)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, namesOf(t, list)...)
		options.Continue = list.(*eventingv1alpha1.EventMetricsList).Continue
	}
	if !slices.Equal(names, []string{"broker-orders", "trigger-bill"}) {
		t.Errorf("the pages have %v", names)
	}
	if _, err := r.List(ctx, &metainternalversion.ListOptions{Continue: "?"}); !apierrors.IsBadRequest(err) {
		t.Errorf("with a bad position: %v", err)
	}
}

// warnings records warnings.
type warnings []string

func (w *warnings) AddWarning(_, text string) { *w = append(*w, text) }

// TestIncomplete warns about replicas that are missing, and fails without any.
func TestIncomplete(t *testing.T) {
	ctx := request.WithNamespace(t.Context(), "shop")
	if _, err := NewServices(&Late{}).List(ctx, nil); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("before there is a reader: %v", err)
	}
	if _, err := NewServices(late(&reader{err: errors.New("broken")})).List(ctx, nil); !apierrors.IsInternalError(err) {
		t.Errorf("without metrics: %v", err)
	}
	source, got := two(), &warnings{}
	source.incomplete = []string{"replica c does not answer"}
	if _, err := NewServices(late(source)).List(warning.WithWarningRecorder(ctx, got), nil); err != nil || !slices.Equal(*got, []string{"incomplete: replica c does not answer"}) {
		t.Errorf("the warnings are %q, %v", *got, err)
	}
}
