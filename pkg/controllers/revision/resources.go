package revision

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// routed converts a Revision to the value for the data plane.
func routed(revision *servingv1.Revision, started bool) *routing.Revision {
	spec := &revision.Spec
	seconds := func(n *int64) time.Duration { return time.Duration(ptr.Deref(n, 0)) * time.Second }
	return &routing.Revision{
		Key:                  types.NamespacedName{Namespace: revision.Namespace, Name: revision.Name},
		UID:                  revision.UID,
		Service:              revision.Labels[servingv1.ServiceLabelKey],
		Configuration:        revision.Labels[servingv1.ConfigurationLabelKey],
		Protocol:             protocol(spec),
		ContainerConcurrency: int(ptr.Deref(spec.ContainerConcurrency, servingv1.DefaultContainerConcurrency)),
		Timeout:              time.Duration(ptr.Deref(spec.TimeoutSeconds, servingv1.DefaultTimeoutSeconds)) * time.Second,
		ResponseStartTimeout: seconds(spec.ResponseStartTimeoutSeconds),
		IdleTimeout:          seconds(spec.IdleTimeoutSeconds),
		Autoscaling:          autoscaling(revision.Annotations),
		Reachable:            revision.Labels[servingv1.RoutingStateLabelKey] == servingv1.RoutingStateActive,
		Started:              started,
	}
}

// autoscaling parses the annotations of a Revision. Values that do not parse, which validation rejects, count as absent.
func autoscaling(annotations map[string]string) routing.Autoscaling {
	number := func(key string) *float64 { return servingv1.NumberAnnotation(annotations, key) }
	count := func(key string) *int32 { return servingv1.CountAnnotation(annotations, key) }
	duration := func(key string) *time.Duration { return servingv1.DurationAnnotation(annotations, key) }
	_, metric, _ := servingv1.AutoscalingAnnotation(annotations, servingv1.MetricAnnotationKey)
	return routing.Autoscaling{
		RPS:               metric == servingv1.RPSMetric,
		Target:            number(servingv1.TargetAnnotationKey),
		TargetUtilization: number(servingv1.TargetUtilizationAnnotationKey),
		BurstCapacity:     number(servingv1.TargetBurstCapacityAnnotationKey),
		PanicWindow:       number(servingv1.PanicWindowPercentageAnnotationKey),
		PanicThreshold:    number(servingv1.PanicThresholdPercentageAnnotationKey),
		Min:               count(servingv1.MinScaleAnnotationKey),
		Max:               count(servingv1.MaxScaleAnnotationKey),
		Initial:           count(servingv1.InitialScaleAnnotationKey),
		Activation:        count(servingv1.ActivationScaleAnnotationKey),
		StableWindow:      duration(servingv1.WindowAnnotationKey),
		ScaleDownDelay:    duration(servingv1.ScaleDownDelayAnnotationKey),
		Retention:         duration(servingv1.PodRetentionAnnotationKey),
		ProgressDeadline:  duration(servingv1.ProgressDeadlineAnnotationKey),
	}
}

// protocol returns the protocol that the name of the only port selects.
func protocol(spec *servingv1.RevisionSpec) routing.Protocol {
	for i := range spec.Containers {
		for j := range spec.Containers[i].Ports {
			if spec.Containers[i].Ports[j].Name == string(routing.H2C) {
				return routing.H2C
			}
		}
	}
	return routing.HTTP1
}

// progressDeadline returns the time that a Revision may take to become ready.
func progressDeadline(annotations map[string]string, s *settings.Settings) time.Duration {
	if deadline := servingv1.DurationAnnotation(annotations, servingv1.ProgressDeadlineAnnotationKey); deadline != nil && *deadline > 0 {
		return *deadline
	}
	return s.Deployment.ProgressDeadline
}
