package service

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
)

// Reasons of the conditions of Services alone.
const (
	reasonOutOfDate          = "OutOfDate"
	reasonTrafficNotMigrated = "TrafficNotMigrated"
	reasonRejected           = "Rejected"
)

// observation is the observed state of a Service's children.
type observation struct {
	// configuration and route are nil if the Service owns none.
	configuration *servingv1.Configuration
	route         *servingv1.Route
	// configurationFault and routeFault are set if a child differs from the Service.
	configurationFault, routeFault *duckv1.Condition
}

// status returns the status of a Service (serving 7.1-6, 7.1-7, 9.1.3). It shares memory with the Service and its children.
func status(service *servingv1.Service, seen observation, now metav1.Time) servingv1.ServiceStatus {
	updated := service.Status
	if c := seen.configuration; c != nil {
		updated.ConfigurationStatusFields = c.Status.ConfigurationStatusFields
	}
	if r := seen.route; r != nil {
		updated.RouteStatusFields = r.Status.RouteStatusFields
	}
	reconciler.Observe(&updated.Status, service.Generation, now,
		[]duckv1.ConditionType{servingv1.ServiceConditionConfigurationsReady, servingv1.ServiceConditionRoutesReady},
		configurationsReady(seen), routesReady(seen))
	return updated
}

func configurationsReady(seen observation) duckv1.Condition {
	const t = servingv1.ServiceConditionConfigurationsReady
	switch c := seen.configuration; {
	case seen.configurationFault != nil:
		return *seen.configurationFault
	case c == nil:
		return reconciler.Unknown(t, "", "")
	case c.Status.ObservedGeneration != c.Generation:
		return outOfDate(t, "Configuration")
	default:
		return reconciler.Repeat(t, reconciler.Ready(c))
	}
}

func routesReady(seen observation) duckv1.Condition {
	const t = servingv1.ServiceConditionRoutesReady
	switch r := seen.route; {
	case seen.routeFault != nil:
		return *seen.routeFault
	case r == nil:
		return reconciler.Unknown(t, "", "")
	case r.Status.ObservedGeneration != r.Generation:
		return outOfDate(t, "Route")
	default:
		ready := reconciler.Repeat(t, reconciler.Ready(r))
		if ready.Status == corev1.ConditionTrue && !migrated(seen) {
			return reconciler.Unknown(t, reasonTrafficNotMigrated, "Traffic is not yet migrated to the latest revision.")
		}
		return ready
	}
}

// outOfDate is the condition of a child that has not been reconciled since it last changed.
func outOfDate(t duckv1.ConditionType, kind string) duckv1.Condition {
	return reconciler.Unknown(t, reasonOutOfDate, fmt.Sprintf("The %s is still working to reflect the latest desired specification.", kind))
}

// migrated reports whether all traffic that follows the latest ready Revision is sent to the latest ready Revision of the
// Configuration.
func migrated(seen observation) bool {
	if seen.configuration == nil {
		return true
	}
	latest := seen.configuration.Status.LatestReadyRevisionName
	for _, target := range seen.route.Status.Traffic {
		if ptr.Deref(target.LatestRevision, false) && target.RevisionName != latest {
			return false
		}
	}
	return true
}

func revisionNameInUse(name string) string {
	return fmt.Sprintf("The revision name %q is taken by a conflicting Revision, so traffic will not be migrated.", name)
}
