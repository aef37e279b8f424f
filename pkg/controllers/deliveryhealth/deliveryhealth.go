// Package deliveryhealth reports in Triggers and Subscriptions whether their latest deliveries succeeded.
package deliveryhealth

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// Condition tells of a Trigger or a Subscription whether its latest deliveries succeeded. It is of
// severity Warning, so that Ready does not depend on it, and missing until one has failed.
const Condition duckv1.ConditionType = "DeliveryHealthy"

const (
	// ReasonFailing tells that the latest deliveries failed. The events are kept and tried again.
	ReasonFailing = "DeliveryFailing"
	// ReasonRecovered tells that deliveries succeed again.
	ReasonRecovered = "DeliveryRecovered"
)

// Observe records in conditions what the broker says of deliveries, which does not change with each of them.
func Observe(conditions *duckv1.Conditions, health eventing.Health, now metav1.Time) {
	condition := reconciler.True(Condition)
	if health.Failing {
		condition = reconciler.False(Condition, ReasonFailing,
			fmt.Sprintf("%s, since %s", health.LastError, health.Since.UTC().Format(time.RFC3339)))
	} else if conditions.Get(Condition) == nil {
		return
	}
	condition.Severity = duckv1.ConditionSeverityWarning
	conditions.Set(condition, now)
}

// Record makes an Event of the change between two states of an object's conditions, if deliveries began to
// fail or to succeed again.
func Record(recorder record.EventRecorder, obj runtime.Object, before, after duckv1.Conditions) {
	failing := func(conditions duckv1.Conditions) bool {
		condition := conditions.Get(Condition)
		return condition != nil && condition.Status == corev1.ConditionFalse
	}
	switch was, is := failing(before), failing(after); {
	case is && !was:
		recorder.Event(obj, corev1.EventTypeWarning, ReasonFailing, after.Get(Condition).Message)
	case was && !is:
		recorder.Event(obj, corev1.EventTypeNormal, ReasonRecovered, "Deliveries succeed again")
	}
}
