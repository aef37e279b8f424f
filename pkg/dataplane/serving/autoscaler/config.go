// Package autoscaler scales revisions by their load, like the Knative Pod Autoscaler. decide is the decision, a pure function
// of the observed state (decide.go); Loop samples the gateway, decides every other second and applies the decisions.
//
// It is simpler than Knative's because all requests always pass the gateway: no request path has to be switched at zero, so the
// scale-to-zero grace period of config-autoscaler has no effect, and the excess burst capacity is only reported. Two rules differ, with the gain that
// TestQuality prints: from zero, the number of waiting requests decides (queueScale), and panic mode may end early (memory.calm).
package autoscaler

import (
	"time"

	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

const (
	// minTarget keeps a small target times a small utilization from asking for any number of instances.
	minTarget = 0.01
)

// config is the scaling configuration of one revision: its own options, with the operator's settings as defaults.
type config struct {
	// RPS is true if the revision scales on requests per second instead of concurrency.
	RPS bool
	// Target is the average of the metric per backend to scale for; Capacity is the maximum that a backend serves, of which
	// Target is the utilization.
	Target, Capacity float64
	// BurstCapacity is the number of requests of a burst to have capacity for; -1 means unlimited.
	BurstCapacity float64
	// StableWindow and PanicWindow are the windows to average the metric over, in whole seconds.
	StableWindow, PanicWindow time.Duration
	// PanicThreshold is the ratio of demand to ready backends at which panic mode begins.
	PanicThreshold float64
	// MaxScaleUpRate and MaxScaleDownRate bound the ratio of the decision to the ready backends.
	MaxScaleUpRate, MaxScaleDownRate float64
	// Min, Max, Initial and Activation are numbers of backends. A Max of 0 means no limit.
	Min, Max, Initial, Activation int32
	// MaxLimit is the operator's limit, which Max does not exceed. 0 means no limit.
	MaxLimit int32
	// ScaleDownDelay is how long demand must be lower before the revision scales down, Retention how long the last backend
	// stays without demand.
	ScaleDownDelay, Retention time.Duration
	// ProgressDeadline is how long Initial is kept for a revision that does not become ready.
	ProgressDeadline time.Duration
	// ScaleToZero is true if revisions without requests may scale to zero.
	ScaleToZero bool
	// Reachable is true if a Route refers to the revision, Started if it was ready before.
	Reachable, Started bool
}

// resolve returns the scaling configuration of a revision.
func resolve(revision *routing.Revision, s *settings.Settings) config {
	a := &revision.Autoscaling
	c := config{
		RPS:              a.RPS,
		BurstCapacity:    ptr.Deref(a.BurstCapacity, s.Autoscaler.TargetBurstCapacity),
		PanicThreshold:   ptr.Deref(a.PanicThreshold, s.Autoscaler.PanicThresholdPercentage) / 100,
		MaxScaleUpRate:   s.Autoscaler.MaxScaleUpRate,
		MaxScaleDownRate: s.Autoscaler.MaxScaleDownRate,
		Min:              ptr.Deref(a.Min, s.Autoscaler.MinScale),
		Max:              limited(ptr.Deref(a.Max, s.Autoscaler.MaxScale), s.Autoscaler.MaxScaleLimit),
		MaxLimit:         s.Autoscaler.MaxScaleLimit,
		Initial:          ptr.Deref(a.Initial, s.Autoscaler.InitialScale),
		Activation:       ptr.Deref(a.Activation, 1),
		ScaleDownDelay:   ptr.Deref(a.ScaleDownDelay, s.Autoscaler.ScaleDownDelay),
		Retention:        ptr.Deref(a.Retention, s.Autoscaler.ScaleToZeroPodRetentionTime),
		ProgressDeadline: ptr.Deref(a.ProgressDeadline, s.Deployment.ProgressDeadline),
		ScaleToZero:      s.Autoscaler.EnableScaleToZero,
		Reachable:        revision.Reachable,
		Started:          revision.Started,
	}
	if c.Initial == 0 && !s.API.AllowZeroInitialScale {
		c.Initial = max(1, s.Autoscaler.InitialScale)
	}
	c.StableWindow = wholeSeconds(ptr.Deref(a.StableWindow, s.Autoscaler.StableWindow))
	panicShare := ptr.Deref(a.PanicWindow, s.Autoscaler.PanicWindowPercentage) / 100
	c.PanicWindow = wholeSeconds(time.Duration(panicShare * float64(c.StableWindow)))
	c.resolveTarget(a, revision.ContainerConcurrency, &s.Autoscaler)
	return c
}

// resolveTarget sets Target and Capacity. Capacity does not exceed the container concurrency.
func (c *config) resolveTarget(a *routing.Autoscaling, containerConcurrency int, s *settings.Autoscaler) {
	switch {
	case c.RPS:
		c.Capacity = ptr.Deref(a.Target, s.RPSTarget)
	case containerConcurrency > 0:
		limit := float64(containerConcurrency)
		c.Capacity = min(ptr.Deref(a.Target, limit), limit)
	default:
		c.Capacity = ptr.Deref(a.Target, s.ConcurrencyTarget)
	}
	utilization := ptr.Deref(a.TargetUtilization, s.TargetUtilization*100) / 100
	c.Target = max(minTarget, c.Capacity*utilization)
}

// limited returns maximum, at most limit. 0 means none, for both.
func limited(maximum, limit int32) int32 {
	if limit > 0 && (maximum == 0 || maximum > limit) {
		return limit
	}
	return maximum
}

// wholeSeconds rounds to the resolution of windows, at least one second.
func wholeSeconds(d time.Duration) time.Duration { return max(bucket, d.Round(bucket)) }
