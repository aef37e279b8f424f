package route

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/hostnames"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/hosttls"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
)

// Reasons of the other conditions of a Route, and of its Events.
const (
	ReasonIngressNotConfigured = "IngressNotConfigured"
	ReasonRolloutInProgress    = "RolloutInProgress"
	// ReasonHostnameConflict means that another object serves one of the host names (serving 8-3).
	ReasonHostnameConflict = "HostnameConflict"
	// ReasonHostnameInvalid means that one of the host names would not be a DNS name.
	ReasonHostnameInvalid = "HostnameInvalid"
	// ReasonTrafficChanged is the reason of Events about a changed assignment.
	ReasonTrafficChanged = "TrafficChanged"
)

// dependents are the conditions that Ready depends on; the first one that fails determines the reason.
var dependents = []duckv1.ConditionType{
	servingv1.RouteConditionAllTrafficAssigned,
	servingv1.RouteConditionIngressReady,
	servingv1.RouteConditionCertificateProvisioned,
}

// findings determine a Route's status.
type findings struct {
	targets  []target
	assigned duckv1.Condition
	// rollouts are the rollouts in progress, due is the time of their next step.
	rollouts []rollout
	due      time.Time

	addresses addresses
	tls       hosttls.Findings
	// lost maps host names to the other objects that serve them.
	lost map[string]hostnames.Owner
	// spreading is true if not all gateways serve this assignment yet.
	spreading bool
	// placeholder is the fault of the Route's core Services, or nil.
	placeholder *duckv1.Condition
}

// latest maps each followed Configuration to the Revision that receives its requests.
func (f *findings) latest() map[string]string {
	latest := map[string]string{}
	for _, t := range f.targets {
		if t.configuration != "" {
			latest[t.configuration] = t.revision
		}
	}
	return latest
}

// status returns the status of a Route (serving 9.3.3).
func (f *findings) status(route *servingv1.Route, now time.Time) (servingv1.RouteStatus, error) {
	status := *route.Status.DeepCopy()
	status.Traffic = nil
	if len(f.targets) > 0 {
		status.Traffic = entries(f.targets, func(tag string) string { return f.addresses.tags[tag] })
	}
	status.URL = f.addresses.url
	status.Address = &duckv1.Addressable{URL: f.addresses.internal}
	if f.addresses.authority != "" {
		status.Address.CACerts = &f.addresses.authority
	}
	if err := writeRollouts(&status, f.rollouts); err != nil {
		return status, err
	}
	if err := writeConflicts(&status, f.lost); err != nil {
		return status, err
	}
	reconciler.Observe(&status.Status, route.Generation, metav1.NewTime(now), dependents, f.assigned, f.ingress(), f.tls.Condition(servingv1.RouteConditionCertificateProvisioned))
	return status, nil
}

// ingress returns IngressReady.
func (f *findings) ingress() duckv1.Condition {
	const t = servingv1.RouteConditionIngressReady
	if len(f.addresses.faults) > 0 {
		return reconciler.False(t, ReasonHostnameInvalid, fmt.Sprintf("A host name cannot be made: %v.", f.addresses.faults[0]))
	}
	if message := f.addresses.conflict(f.lost); message != "" {
		return reconciler.False(t, ReasonHostnameConflict, message)
	}
	if f.tls.Fault != nil {
		return reconciler.False(t, hosttls.ReasonHTTPProtocolInvalid, f.tls.Fault.Error())
	}
	if f.placeholder != nil {
		return *f.placeholder
	}
	if len(f.targets) == 0 {
		return reconciler.Unknown(t, ReasonIngressNotConfigured, "Ingress has not yet been reconciled.")
	}
	if len(f.rollouts) > 0 {
		return reconciler.Unknown(t, ReasonRolloutInProgress, "A gradual rollout of the latest revision(s) is in progress.")
	}
	if f.spreading {
		return reconciler.Unknown(t, ReasonIngressNotConfigured, "Not all gateways serve the latest assignment yet.")
	}
	return reconciler.True(t)
}

// changed returns a message about the new assignment if it differs from the previous one, or "". It ignores the steps of a rollout
// between the first and the last one.
func changed(before, after *servingv1.RouteStatus) string {
	message := summary(after.Traffic)
	if message == summary(before.Traffic) || before.Annotations[rolloutAnnotationKey] != "" && before.Annotations[rolloutAnnotationKey] == after.Annotations[rolloutAnnotationKey] {
		return ""
	}
	return message
}

func summary(traffic []servingv1.TrafficTarget) string {
	var parts []string
	for _, t := range traffic {
		part := fmt.Sprintf("%s (%d%%)", t.RevisionName, ptr.Deref(t.Percent, 0))
		if t.Tag != "" {
			part = fmt.Sprintf("%s (%d%%, tag %s)", t.RevisionName, ptr.Deref(t.Percent, 0), t.Tag)
		}
		parts = append(parts, part)
	}
	if len(parts) == 0 {
		return ""
	}
	return "Requests go to " + strings.Join(parts, ", ")
}
