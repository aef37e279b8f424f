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

// Condition reports whether the latest deliveries of a Trigger or a Subscription succeeded. Its severity is Warning, so that Ready does
// not depend on it. It is absent until a delivery has failed.
const Condition duckv1.ConditionType = "DeliveryHealthy"

const (
	// ReasonFailing means that the latest deliveries failed. The events are kept and retried.
	ReasonFailing = "DeliveryFailing"
	// ReasonRecovered means that deliveries succeed again.
	ReasonRecovered = "DeliveryRecovered"
)

// Observe sets Condition from the health of deliveries, which does not change with each delivery.
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

// Record records an Event if deliveries started to fail or to succeed again between two states of an object's conditions.
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
