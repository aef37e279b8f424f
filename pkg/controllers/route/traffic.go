package route

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
)

// Reasons of AllTrafficAssigned.
const (
	ReasonRevisionMissing      = "RevisionMissing"
	ReasonConfigurationMissing = "ConfigurationMissing"
	ReasonRevisionNotOwned     = "RevisionNotOwned"
)

// target is one entry of a Route's traffic, resolved to a Revision.
type target struct {
	tag      string
	revision string
	// configuration is the Configuration whose latest Revision this is. It is empty for pinned Revisions, and for targets read
	// from a status, which does not name Configurations.
	configuration string
	latest        bool
	percent       int64
}

// sources read the objects that traffic refers to, all in one namespace.
type sources struct {
	configuration func(name string) (*servingv1.Configuration, error)
	revision      func(name string) (*servingv1.Revision, error)
}

// wanted returns the traffic of a Route's spec with its defaults: without any, the Route follows one Configuration.
func wanted(route *servingv1.Route) []servingv1.TrafficTarget {
	configuration := cmp.Or(route.Labels[servingv1.ServiceLabelKey], route.Name)
	if len(route.Spec.Traffic) == 0 {
		return []servingv1.TrafficTarget{{ConfigurationName: configuration, Percent: ptr.To[int64](100)}}
	}
	traffic := slices.Clone(route.Spec.Traffic)
	for i := range traffic {
		if traffic[i].RevisionName == "" && traffic[i].ConfigurationName == "" {
			traffic[i].ConfigurationName = configuration
		}
	}
	return traffic
}

// resolve finds the Revision of each target in a Route's spec. The condition is AllTrafficAssigned; unless it is True the targets must
// not be used, and the last assignment stays.
func resolve(route *servingv1.Route, from sources) ([]target, duckv1.Condition, error) {
	assigned := reconciler.True(servingv1.RouteConditionAllTrafficAssigned)
	var targets []target
	for _, spec := range wanted(route) {
		resolved := target{tag: spec.Tag, revision: spec.RevisionName, configuration: spec.ConfigurationName, percent: ptr.Deref(spec.Percent, 0)}
		var fault *duckv1.Condition
		var err error
		if spec.RevisionName == "" {
			resolved.latest = true
			resolved.revision, fault, err = from.latest(spec.ConfigurationName)
		} else {
			fault, err = from.pinned(spec.RevisionName, route.Labels[servingv1.ServiceLabelKey])
		}
		if err != nil {
			return nil, assigned, err
		}
		// The first failure determines the reason. Targets that are still pending have lower priority.
		if fault != nil && (assigned.Status == corev1.ConditionTrue || assigned.Status == corev1.ConditionUnknown && fault.Status == corev1.ConditionFalse) {
			assigned = *fault
		}
		targets = append(targets, resolved)
	}
	return targets, assigned, nil
}

// latest returns the latest ready Revision of a Configuration, or the reason why it does not exist.
func (from sources) latest(name string) (string, *duckv1.Condition, error) {
	configuration, err := from.configuration(name)
	switch {
	case apierrors.IsNotFound(err):
		return "", notFound("Configuration", ReasonConfigurationMissing, name), nil
	case err != nil:
		return "", nil, err
	}
	latest := configuration.Status.LatestReadyRevisionName
	if latest != "" {
		switch _, err := from.revision(latest); {
		case apierrors.IsNotFound(err):
			return "", notFound("Revision", ReasonRevisionMissing, latest), nil
		case err != nil:
			return "", nil, err
		}
		return latest, nil, nil
	}
	if ready := reconciler.Ready(configuration); ready != nil && ready.Status == corev1.ConditionFalse {
		return "", ptr.To(reconciler.False(servingv1.RouteConditionAllTrafficAssigned, ReasonRevisionMissing,
			because(fmt.Sprintf("Configuration %q does not have any ready Revision", name), ready.Message))), nil
	}
	return "", ptr.To(reconciler.Unknown(servingv1.RouteConditionAllTrafficAssigned, ReasonRevisionMissing,
		fmt.Sprintf("Configuration %q is waiting for a Revision to become ready.", name))), nil
}

// pinned returns the reason why requests cannot be sent to a Revision, or nil. A Route that belongs to a Service may not name the
// Revisions of other Services.
func (from sources) pinned(name, service string) (*duckv1.Condition, error) {
	revision, err := from.revision(name)
	switch {
	case apierrors.IsNotFound(err):
		return notFound("Revision", ReasonRevisionMissing, name), nil
	case err != nil:
		return nil, err
	case service != "" && revision.Labels[servingv1.ServiceLabelKey] != service:
		return ptr.To(reconciler.False(servingv1.RouteConditionAllTrafficAssigned, ReasonRevisionNotOwned,
			fmt.Sprintf("Revision %q does not belong to Service %q.", name, service))), nil
	}
	ready := reconciler.Ready(revision)
	switch {
	case ready != nil && ready.Status == corev1.ConditionTrue:
		return nil, nil
	case ready != nil && ready.Status == corev1.ConditionFalse:
		return ptr.To(reconciler.False(servingv1.RouteConditionAllTrafficAssigned, ReasonRevisionMissing,
			because(fmt.Sprintf("Revision %q failed to become ready", name), ready.Message))), nil
	}
	return ptr.To(reconciler.Unknown(servingv1.RouteConditionAllTrafficAssigned, ReasonRevisionMissing,
		fmt.Sprintf("Revision %q is not yet ready.", name))), nil
}

func notFound(kind, reason, name string) *duckv1.Condition {
	return ptr.To(reconciler.False(servingv1.RouteConditionAllTrafficAssigned, reason, fmt.Sprintf("%s %q referenced in traffic not found.", kind, name)))
}

// because returns a sentence with an event and its cause, if that is known.
func because(what, cause string) string {
	if cause == "" {
		return what + "."
	}
	return what + ": " + cause
}

// assignedBefore reads the targets of a Route's status: the last valid assignment.
func assignedBefore(status *servingv1.RouteStatus) []target {
	targets := make([]target, 0, len(status.Traffic))
	for _, t := range status.Traffic {
		targets = append(targets, target{tag: t.Tag, revision: t.RevisionName, latest: ptr.Deref(t.LatestRevision, false), percent: ptr.Deref(t.Percent, 0)})
	}
	return targets
}

// surviving drops the targets whose Revision no longer exists and divides their percents among the others. If none of the remaining
// targets has a share, all targets stay.
func surviving(targets []target, exists func(revision string) bool) []target {
	left := slices.DeleteFunc(slices.Clone(targets), func(t target) bool { return !exists(t.revision) })
	if len(left) == len(targets) || !slices.ContainsFunc(left, func(t target) bool { return t.percent > 0 }) {
		return targets
	}
	return scaled(left, 100)
}

// scaled returns targets whose percents sum to a total, in their current proportion; targets without a share keep none. The rest of the
// rounding is added to the targets with the greatest remainders. At least one target has a share.
func scaled(targets []target, total int64) []target {
	var sum, given int64
	for _, t := range targets {
		sum += t.percent
	}
	if sum == total {
		return targets
	}
	targets = slices.Clone(targets)
	order := make([]int, len(targets))
	remainders := make([]int64, len(targets))
	for i := range targets {
		order[i] = i
		remainders[i] = targets[i].percent * total % sum
		targets[i].percent = targets[i].percent * total / sum
		given += targets[i].percent
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(remainders[b], remainders[a]) })
	for _, i := range order[:total-given] {
		targets[i].percent++
	}
	return targets
}

// entries converts targets to the entries of a status; url returns the address of a tag.
func entries(targets []target, url func(tag string) string) []servingv1.TrafficTarget {
	traffic := make([]servingv1.TrafficTarget, 0, len(targets))
	for _, t := range targets {
		entry := servingv1.TrafficTarget{Tag: t.tag, RevisionName: t.revision, LatestRevision: ptr.To(t.latest), Percent: ptr.To(t.percent)}
		if t.tag != "" {
			entry.URL = url(t.tag)
		}
		traffic = append(traffic, entry)
	}
	return traffic
}
