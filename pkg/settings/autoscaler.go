package settings

import (
	"time"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// AutoscalerConfigMapName is the name of the ConfigMap with the autoscaler's settings.
const AutoscalerConfigMapName = "config-autoscaler"

const (
	minStableWindow = 6 * time.Second
	maxStableWindow = time.Hour
	// minPanicWindow is the interval of the autoscaler's samples.
	minPanicWindow = time.Second
	minTarget      = 0.01
)

const (
	keyTargetPercentage      = "container-concurrency-target-percentage"
	keyTargetDefault         = "container-concurrency-target-default"
	keyPanicWindowPercentage = "panic-window-percentage"
	keyInitialScale          = "initial-scale"
	keyMinScale              = "min-scale"
	keyMaxScale              = "max-scale"
	keyMaxScaleLimit         = "max-scale-limit"
)

// parseAutoscaler sets the values of config-autoscaler in s.
func parseAutoscaler(p *parser, s *Settings) error {
	a := &s.Autoscaler

	read(p, &a.TargetUtilization, share, "a percentage above 0 up to 100, or a share above 0 up to 1", keyTargetPercentage)
	target := number(func(n float64) bool { return n >= minTarget })
	read(p, &a.ConcurrencyTarget, target, "a number greater than or equal to 0.01", keyTargetDefault)
	read(p, &a.RPSTarget, target, "a number greater than or equal to 0.01", "requests-per-second-target-default")
	read(p, &a.TargetBurstCapacity, number(func(n float64) bool { return n >= 0 || n == -1 }),
		"a number greater than or equal to 0, or -1 for no limit", "target-burst-capacity")
	// The capacity of an activator has no effect: the gateway is always in the request path.
	var unused float64
	read(p, &unused, number(func(n float64) bool { return n >= 1 }), "a number greater than or equal to 1", "activator-capacity")

	read(p, &a.StableWindow, period(func(d time.Duration) bool {
		return d >= minStableWindow && d <= maxStableWindow && wholeSeconds(d)
	}), "a duration between 6s and 1h, inclusive, in whole seconds", "stable-window")
	read(p, &a.PanicWindowPercentage, number(func(n float64) bool { return n >= 1 && n <= 100 }),
		"a number between 1 and 100, inclusive", keyPanicWindowPercentage)
	read(p, &a.PanicThresholdPercentage, number(func(n float64) bool { return n >= 110 && n <= 1000 }),
		"a number between 110 and 1000, inclusive", "panic-threshold-percentage")
	rate := number(func(n float64) bool { return n > 1 })
	read(p, &a.MaxScaleUpRate, rate, "a number greater than 1", "max-scale-up-rate")
	read(p, &a.MaxScaleDownRate, rate, "a number greater than 1", "max-scale-down-rate")

	read(p, &a.EnableScaleToZero, boolean, "true or false", "enable-scale-to-zero")
	read(p, &a.ScaleToZeroGracePeriod, period(func(d time.Duration) bool { return d >= minStableWindow }),
		"a duration of at least 6s", "scale-to-zero-grace-period")
	read(p, &a.ScaleToZeroPodRetentionTime, period(func(d time.Duration) bool { return d >= 0 }),
		"a duration of at least 0s", "scale-to-zero-pod-retention-period")
	read(p, &a.ScaleDownDelay, period(func(d time.Duration) bool { return d >= 0 && wholeSeconds(d) }),
		"a duration of at least 0s, in whole seconds", "scale-down-delay")

	const scale = "a whole number between 0 and 2147483647, inclusive"
	read(p, &s.API.AllowZeroInitialScale, boolean, "true or false", "allow-zero-initial-scale")
	read(p, &a.InitialScale, whole[int32](0), scale, keyInitialScale)
	read(p, &a.MinScale, whole[int32](0), scale, keyMinScale)
	read(p, &a.MaxScale, whole[int32](0), scale, keyMaxScale)
	read(p, &a.MaxScaleLimit, whole[int32](0), scale, keyMaxScaleLimit)
	s.API.MaxScaleLimit = a.MaxScaleLimit
	var class string
	read(p, &class, func(value string) (string, bool) { return value, value == servingv1.KPAClass },
		"'"+servingv1.KPAClass+"', because no HorizontalPodAutoscaler is created (until it is corrected, all keys of the ConfigMap keep their last valid values)", "pod-autoscaler-class")

	checkAutoscaler(p, s)
	return p.done()
}

// checkAutoscaler checks combinations of values in config-autoscaler.
func checkAutoscaler(p *parser, s *Settings) {
	a := s.Autoscaler
	p.check(a.TargetUtilization*a.ConcurrencyTarget >= minTarget, keyTargetPercentage,
		"leave at least 0.01 of '%s' (%v), not %v", keyTargetDefault, a.ConcurrencyTarget, a.TargetUtilization*a.ConcurrencyTarget)
	panicWindow := time.Duration(float64(a.StableWindow) * a.PanicWindowPercentage / 100)
	p.check(panicWindow >= minPanicWindow, keyPanicWindowPercentage,
		"be at least %v, because the panic window would be %v, less than 1s, with a stable window of %v",
		100*float64(minPanicWindow)/float64(a.StableWindow), panicWindow, a.StableWindow)
	p.check(a.InitialScale > 0 || s.API.AllowZeroInitialScale, keyInitialScale,
		"be at least 1, because 'allow-zero-initial-scale' is off")
	p.check(a.MaxScale == 0 || a.MinScale <= a.MaxScale, keyMinScale, "be at most '%s' (%d), not %d", keyMaxScale, a.MaxScale, a.MinScale)
	if a.MaxScaleLimit > 0 {
		p.check(a.MaxScale <= a.MaxScaleLimit, keyMaxScale, "be at most '%s' (%d), not %d", keyMaxScaleLimit, a.MaxScaleLimit, a.MaxScale)
		p.check(a.MinScale <= a.MaxScaleLimit, keyMinScale, "be at most '%s' (%d), not %d", keyMaxScaleLimit, a.MaxScaleLimit, a.MinScale)
	}
}

// share parses a percentage or a fraction of 1: values up to 1 are fractions, as in Knative.
func share(value string) (float64, bool) {
	n, ok := number(func(n float64) bool { return n > 0 && n <= 100 })(value)
	if n > 1 {
		n /= 100
	}
	return n, ok
}
