// Package autoscaler decides how many instances revisions run: by the requests they have, as the Knative Pod
// Autoscaler does. Decide is the decision, a function of what is known at one moment; Loop samples the gateway,
// decides every other second, and applies what was decided.
//
// It differs from Knative where the gateway, which all requests pass through, makes things simpler: nothing has
// to be waited for until requests go another way, so the scale-to-zero grace period of config-autoscaler has no
// effect, and the excess burst capacity is only reported.
package autoscaler

import (
	"math"
	"strconv"
	"time"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

const (
	// minTarget keeps a small target times a small utilization from asking for any number of instances.
	minTarget = 0.01
)

// Config is how one revision scales: its annotations where it has them, else the operator's settings.
type Config struct {
	// RPS tells that the revision scales on requests per second instead of concurrency.
	RPS bool
	// Target is what one instance is to get of the metric on average; Capacity is what it could take, before
	// utilization is subtracted.
	Target, Capacity float64
	// BurstCapacity is how many requests a burst may bring; -1 means any number.
	BurstCapacity float64
	// StableWindow and PanicWindow are what the metric is averaged over, in whole seconds.
	StableWindow, PanicWindow time.Duration
	// PanicThreshold is the factor by which demand exceeds the ready instances when panic begins.
	PanicThreshold float64
	// MaxScaleUpRate and MaxScaleDownRate bound the factor between the ready instances and the decision.
	MaxScaleUpRate, MaxScaleDownRate float64
	// Min, Max, Initial and Activation are numbers of instances. A Max of 0 means no limit.
	Min, Max, Initial, Activation int32
	// ScaleDownDelay is how long demand must be lower before it counts, Retention how long the last instance
	// is kept without demand.
	ScaleDownDelay, Retention time.Duration
	// ProgressDeadline is how long Initial is held for a revision that does not become ready.
	ProgressDeadline time.Duration
	// ScaleToZero lets a revision without requests run no instance.
	ScaleToZero bool
	// Reachable tells whether a Route refers to the revision, Started whether it has been ready before.
	Reachable, Started bool
}

// Resolve returns how a revision scales. Annotations that do not parse, which admission keeps out, are as if
// they were not there.
func Resolve(revision *routing.Revision, s *settings.Settings) Config {
	a := annotations(revision.Annotations)
	c := Config{
		BurstCapacity:    a.number(servingv1.TargetBurstCapacityAnnotationKey, s.Autoscaler.TargetBurstCapacity),
		PanicThreshold:   a.number(servingv1.PanicThresholdPercentageAnnotationKey, s.Autoscaler.PanicThresholdPercentage) / 100,
		MaxScaleUpRate:   s.Autoscaler.MaxScaleUpRate,
		MaxScaleDownRate: s.Autoscaler.MaxScaleDownRate,
		Min:              a.instances(servingv1.MinScaleAnnotationKey, s.Autoscaler.MinScale),
		Max:              limited(a.instances(servingv1.MaxScaleAnnotationKey, s.Autoscaler.MaxScale), s.Autoscaler.MaxScaleLimit),
		Initial:          a.instances(servingv1.InitialScaleAnnotationKey, s.Autoscaler.InitialScale),
		Activation:       a.instances(servingv1.ActivationScaleAnnotationKey, 1),
		ScaleDownDelay:   a.duration(servingv1.ScaleDownDelayAnnotationKey, s.Autoscaler.ScaleDownDelay),
		Retention:        a.duration(servingv1.PodRetentionAnnotationKey, s.Autoscaler.ScaleToZeroPodRetentionTime),
		ProgressDeadline: a.duration(servingv1.ProgressDeadlineAnnotationKey, s.Deployment.ProgressDeadline),
		ScaleToZero:      s.Autoscaler.EnableScaleToZero,
		Reachable:        revision.Reachable,
		Started:          revision.Started,
	}
	if c.Initial == 0 && !s.API.AllowZeroInitialScale {
		c.Initial = max(1, s.Autoscaler.InitialScale)
	}
	c.StableWindow = wholeSeconds(a.duration(servingv1.WindowAnnotationKey, s.Autoscaler.StableWindow))
	panicShare := a.number(servingv1.PanicWindowPercentageAnnotationKey, s.Autoscaler.PanicWindowPercentage) / 100
	c.PanicWindow = wholeSeconds(time.Duration(panicShare * float64(c.StableWindow)))
	c.resolveTarget(a, revision.ContainerConcurrency, &s.Autoscaler)
	return c
}

// resolveTarget sets what one instance is to get. More concurrency than its containers take is no target.
func (c *Config) resolveTarget(a annotations, containerConcurrency int, s *settings.Autoscaler) {
	_, metric, _ := servingv1.AutoscalingAnnotation(a, servingv1.MetricAnnotationKey)
	c.RPS = metric == servingv1.RPSMetric
	switch {
	case c.RPS:
		c.Capacity = a.number(servingv1.TargetAnnotationKey, s.RPSTarget)
	case containerConcurrency > 0:
		limit := float64(containerConcurrency)
		c.Capacity = min(a.number(servingv1.TargetAnnotationKey, limit), limit)
	default:
		c.Capacity = a.number(servingv1.TargetAnnotationKey, s.ConcurrencyTarget)
	}
	utilization := a.number(servingv1.TargetUtilizationAnnotationKey, s.TargetUtilization*100) / 100
	c.Target = max(minTarget, c.Capacity*utilization)
}

// limited is a maximum no higher than a limit. 0 means none, for both.
func limited(maximum, limit int32) int32 {
	if limit > 0 && (maximum == 0 || maximum > limit) {
		return limit
	}
	return maximum
}

// wholeSeconds rounds to what windows count in, at least one.
func wholeSeconds(d time.Duration) time.Duration { return max(bucket, d.Round(bucket)) }

// annotations are those of a revision. Each method returns the value of a key, or else what holds without.
type annotations map[string]string

func (a annotations) number(key string, otherwise float64) float64 {
	if _, value, ok := servingv1.AutoscalingAnnotation(a, key); ok {
		if n, err := strconv.ParseFloat(value, 64); err == nil && !math.IsNaN(n) && !math.IsInf(n, 0) {
			return n
		}
	}
	return otherwise
}

func (a annotations) instances(key string, otherwise int32) int32 {
	if _, value, ok := servingv1.AutoscalingAnnotation(a, key); ok {
		if n, err := strconv.ParseInt(value, 10, 32); err == nil && n >= 0 {
			return int32(n)
		}
	}
	return otherwise
}

func (a annotations) duration(key string, otherwise time.Duration) time.Duration {
	if _, value, ok := servingv1.AutoscalingAnnotation(a, key); ok {
		if d, err := time.ParseDuration(value); err == nil && d >= 0 {
			return d
		}
	}
	return otherwise
}
