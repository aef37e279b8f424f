package event

import (
	"cmp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metatable "k8s.io/apimachinery/pkg/api/meta/table"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/knative-apiserver/knative-apiserver/pkg/registry"
)

// newTableConvertor renders Events with the columns of kubectl get events.
func newTableConvertor() rest.TableConvertor {
	name := registry.NameColumn[*corev1.Event]()
	times := column("Count", "count", func(e *corev1.Event) any { return count(e) })
	times.Type = "integer"
	return registry.NewTableConvertor(
		column("Last Seen", "lastTimestamp", func(e *corev1.Event) any { return since(lastSeen(e)) }),
		column("Type", "type", func(e *corev1.Event) any { return e.Type }),
		column("Reason", "reason", func(e *corev1.Event) any { return e.Reason }),
		column("Object", "involvedObject", func(e *corev1.Event) any { return object(e) }),
		wide(column("Subobject", "involvedObject", func(e *corev1.Event) any { return e.InvolvedObject.FieldPath })),
		wide(column("Source", "source", func(e *corev1.Event) any { return source(e) })),
		column("Message", "message", func(e *corev1.Event) any { return strings.TrimSpace(e.Message) }),
		wide(column("First Seen", "firstTimestamp", func(e *corev1.Event) any { return since(firstSeen(e)) })),
		wide(times),
		wide(name),
	)
}

func column(name, describedBy string, value func(*corev1.Event) any) registry.Column[*corev1.Event] {
	return registry.Column[*corev1.Event]{Name: name, Type: "string", Description: corev1.Event{}.SwaggerDoc()[describedBy], Value: value}
}

func wide(c registry.Column[*corev1.Event]) registry.Column[*corev1.Event] {
	c.Wide = true
	return c
}

func since(t metav1.Time) string { return metatable.ConvertToHumanReadableDateType(t) }

func firstSeen(e *corev1.Event) metav1.Time {
	if e.FirstTimestamp.IsZero() {
		return metav1.Time(e.EventTime)
	}
	return e.FirstTimestamp
}

func lastSeen(e *corev1.Event) metav1.Time {
	switch {
	case e.Series != nil:
		return metav1.Time(e.Series.LastObservedTime)
	case e.LastTimestamp.IsZero():
		return firstSeen(e)
	}
	return e.LastTimestamp
}

// count returns the number of occurrences of an Event, 1 if unset.
func count(e *corev1.Event) int64 {
	if e.Series != nil {
		return int64(e.Series.Count)
	}
	return int64(max(e.Count, 1))
}

// object returns the involved object, such as service/hello.
func object(e *corev1.Event) string {
	kind := strings.ToLower(e.InvolvedObject.Kind)
	if e.InvolvedObject.Name == "" {
		return kind
	}
	return kind + "/" + e.InvolvedObject.Name
}

// source returns the reporting component and its host.
func source(e *corev1.Event) string {
	component := cmp.Or(e.Source.Component, e.ReportingController)
	host := cmp.Or(e.Source.Host, e.ReportingInstance)
	if host == "" {
		return component
	}
	return component + ", " + host
}
