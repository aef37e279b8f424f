package controllers

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// ConditionDeliveryHealthy tells of a Trigger or a Subscription whether its latest deliveries succeeded. It is of
// severity Warning, so that Ready does not depend on it, and missing until one has failed.
const ConditionDeliveryHealthy duckv1.ConditionType = "DeliveryHealthy"

const (
	// ReasonDeliveryFailing tells that the latest deliveries failed. The events are kept and tried again.
	ReasonDeliveryFailing = "DeliveryFailing"
	// ReasonDeliveryRecovered tells that deliveries succeed again.
	ReasonDeliveryRecovered = "DeliveryRecovered"
)

// ObserveDelivery records in conditions what the broker says of deliveries, which does not change with each of them.
func ObserveDelivery(conditions *duckv1.Conditions, health eventing.Health, now metav1.Time) {
	condition := True(ConditionDeliveryHealthy)
	if health.Failing {
		condition = False(ConditionDeliveryHealthy, ReasonDeliveryFailing,
			fmt.Sprintf("%s, since %s", health.LastError, health.Since.UTC().Format(time.RFC3339)))
	} else if conditions.Get(ConditionDeliveryHealthy) == nil {
		return
	}
	condition.Severity = duckv1.ConditionSeverityWarning
	conditions.Set(condition, now)
}

// RecordDelivery makes an Event of the change between two states of an object's conditions, if deliveries began to
// fail or to succeed again.
func RecordDelivery(recorder record.EventRecorder, obj runtime.Object, before, after duckv1.Conditions) {
	failing := func(conditions duckv1.Conditions) bool {
		condition := conditions.Get(ConditionDeliveryHealthy)
		return condition != nil && condition.Status == corev1.ConditionFalse
	}
	switch was, is := failing(before), failing(after); {
	case is && !was:
		recorder.Event(obj, corev1.EventTypeWarning, ReasonDeliveryFailing, after.Get(ConditionDeliveryHealthy).Message)
	case was && !is:
		recorder.Event(obj, corev1.EventTypeNormal, ReasonDeliveryRecovered, "Deliveries succeed again")
	}
}
