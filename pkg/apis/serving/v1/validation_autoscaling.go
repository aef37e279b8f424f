package v1

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Values and limits of the autoscaling annotations.
const (
	// KPAClass is the class of our own autoscaler, which counts requests.
	KPAClass = "kpa." + AutoscalingGroupName
	// ConcurrencyMetric scales on requests in flight.
	ConcurrencyMetric = "concurrency"
	// RPSMetric scales on requests per second.
	RPSMetric = "rps"

	minWindow = 6 * time.Second
	maxWindow = time.Hour

	wholeSeconds = "must be in whole seconds"
)

// legacyAutoscalingKeys maps annotations to their former names, which manifests still use.
var legacyAutoscalingKeys = map[string]string{
	MinScaleAnnotationKey:                 AutoscalingGroupName + "/minScale",
	MaxScaleAnnotationKey:                 AutoscalingGroupName + "/maxScale",
	InitialScaleAnnotationKey:             AutoscalingGroupName + "/initialScale",
	TargetUtilizationAnnotationKey:        AutoscalingGroupName + "/targetUtilizationPercentage",
	TargetBurstCapacityAnnotationKey:      AutoscalingGroupName + "/targetBurstCapacity",
	PanicWindowPercentageAnnotationKey:    AutoscalingGroupName + "/panicWindowPercentage",
	PanicThresholdPercentageAnnotationKey: AutoscalingGroupName + "/panicThresholdPercentage",
	ScaleDownDelayAnnotationKey:           AutoscalingGroupName + "/scaleDownDelay",
	PodRetentionAnnotationKey:             AutoscalingGroupName + "/scaleToZeroPodRetentionPeriod",
}

// AutoscalingAnnotation looks up an autoscaling annotation by its key, or by the key's former camel case name (minScale for
// min-scale), and returns the key that was found with its value. The current name takes precedence.
func AutoscalingAnnotation(annotations map[string]string, key string) (found, value string, ok bool) {
	if value, ok = annotations[key]; ok {
		return key, value, true
	}
	if legacy := legacyAutoscalingKeys[key]; legacy != "" {
		if value, ok = annotations[legacy]; ok {
			return legacy, value, true
		}
	}
	return "", "", false
}

// NumberAnnotation returns the value of an annotation that AutoscalingAnnotation looks up, or nil if it is absent or not a finite number.
func NumberAnnotation(annotations map[string]string, key string) *float64 {
	if _, value, ok := AutoscalingAnnotation(annotations, key); ok {
		if n, ok := parseFinite(value); ok {
			return &n
		}
	}
	return nil
}

// CountAnnotation returns the value of an annotation that AutoscalingAnnotation looks up, or nil if it is absent or not a whole number from zero up.
func CountAnnotation(annotations map[string]string, key string) *int32 {
	if _, value, ok := AutoscalingAnnotation(annotations, key); ok {
		if n, err := strconv.ParseInt(value, 10, 32); err == nil && n >= 0 {
			count := int32(n)
			return &count
		}
	}
	return nil
}

// DurationAnnotation returns the value of an annotation that AutoscalingAnnotation looks up, or nil if it is absent, negative or not a duration.
func DurationAnnotation(annotations map[string]string, key string) *time.Duration {
	if _, value, ok := AutoscalingAnnotation(annotations, key); ok {
		if d, err := time.ParseDuration(value); err == nil && d >= 0 {
			return &d
		}
	}
	return nil
}

// validateAutoscaling validates the annotations of a Revision's autoscaling. Unknown annotations of the group are ignored, because
// other autoscalers have their own.
func validateAutoscaling(annotations map[string]string, st Settings, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, rule := range autoscalingRules(st.AllowZeroInitialScale) {
		if key, value, ok := AutoscalingAnnotation(annotations, rule.key); ok {
			if msg := rule.fault(value); msg != "" {
				errs = append(errs, field.Invalid(path.Key(key), value, msg))
			}
		}
	}
	errs = append(errs, validateScaleLimit(annotations, st.MaxScaleLimit, path)...)
	return append(errs, validateScaleBounds(annotations, path)...)
}

// validateScaleLimit checks that max-scale is within the operator's limit, which 0 (unlimited) is not.
func validateScaleLimit(annotations map[string]string, limit int32, path *field.Path) field.ErrorList {
	key, value, _ := AutoscalingAnnotation(annotations, MaxScaleAnnotationKey)
	n, err := strconv.ParseInt(value, 10, 32)
	if limit == 0 || err != nil || n < 0 || n > 0 && n <= int64(limit) {
		return nil
	}
	return field.ErrorList{field.Invalid(path.Key(key), value,
		fmt.Sprintf("must be between 1 and %d, inclusive, because of max-scale-limit in config-autoscaler", limit))}
}

// validateScaleBounds checks that max-scale is at least min-scale unless it is 0, which means unlimited.
func validateScaleBounds(annotations map[string]string, path *field.Path) field.ErrorList {
	_, minValue, _ := AutoscalingAnnotation(annotations, MinScaleAnnotationKey)
	maxKey, maxValue, _ := AutoscalingAnnotation(annotations, MaxScaleAnnotationKey)
	lower, lowerErr := strconv.ParseInt(minValue, 10, 32)
	upper, upperErr := strconv.ParseInt(maxValue, 10, 32)
	if lowerErr != nil || upperErr != nil || upper <= 0 || lower <= upper {
		return nil
	}
	return field.ErrorList{field.Invalid(path.Key(maxKey), maxValue,
		fmt.Sprintf("must be 0 or greater than or equal to min-scale (%d)", lower))}
}

// autoscalingRule returns the error of a value of the annotation key, or "".
//
// +k8s:deepcopy-gen=false
// +k8s:openapi-gen=false
type autoscalingRule struct {
	key   string
	fault func(value string) string
}

func autoscalingRules(allowZeroInitialScale bool) []autoscalingRule {
	initialScale := intAtLeast(0)
	if !allowZeroInitialScale {
		initialScale = func(value string) string {
			msg := intAtLeast(1)(value)
			if n, err := strconv.ParseInt(value, 10, 32); err == nil && n == 0 {
				msg += ", because allow-zero-initial-scale in config-autoscaler is off"
			}
			return msg
		}
	}
	return []autoscalingRule{
		{ClassAnnotationKey, because(oneOf(KPAClass), noHPA)},
		{MetricAnnotationKey, because(oneOf(ConcurrencyMetric, RPSMetric), noHPA)},
		{MinScaleAnnotationKey, intAtLeast(0)},
		{MaxScaleAnnotationKey, intAtLeast(0)},
		{InitialScaleAnnotationKey, initialScale},
		{ActivationScaleAnnotationKey, intAtLeast(2)},
		{TargetAnnotationKey, floatAtLeast(0.01)},
		{TargetUtilizationAnnotationKey, floatBetween(1, 100)},
		{TargetBurstCapacityAnnotationKey, burstCapacity},
		{PanicWindowPercentageAnnotationKey, floatBetween(1, 100)},
		{PanicThresholdPercentageAnnotationKey, floatBetween(110, 1000)},
		{WindowAnnotationKey, both(durationBetween(minWindow, maxWindow), secondPrecision)},
		{ScaleDownDelayAnnotationKey, both(durationBetween(0, maxWindow), secondPrecision)},
		{PodRetentionAnnotationKey, durationBetween(0, maxWindow)},
	}
}

// noHPA states the alternative to the class hpa and its metrics.
const noHPA = "no HorizontalPodAutoscaler is created; use " + TargetAnnotationKey + " with the metric '" + ConcurrencyMetric + "' or '" + RPSMetric + "'"

// because adds a reason to an error.
func because(rule func(string) string, reason string) func(string) string {
	return func(value string) string {
		if msg := rule(value); msg != "" {
			return msg + ": " + reason
		}
		return ""
	}
}

// both returns the first of two errors.
func both(first, second func(string) string) func(string) string {
	return func(value string) string {
		if msg := first(value); msg != "" {
			return msg
		}
		return second(value)
	}
}

func oneOf(values ...string) func(string) string {
	return func(value string) string {
		if slices.Contains(values, value) {
			return ""
		}
		return "must be '" + strings.Join(values, "' or '") + "'"
	}
}

func intAtLeast(lower int64) func(string) string {
	return func(value string) string {
		if n, err := strconv.ParseInt(value, 10, 32); err != nil || n < lower {
			return fmt.Sprintf("must be a whole number greater than or equal to %d and less than 2147483648", lower)
		}
		return ""
	}
}

// parseFinite parses a finite number. NaN would pass every comparison.
func parseFinite(value string) (float64, bool) {
	n, err := strconv.ParseFloat(value, 64)
	return n, err == nil && !math.IsNaN(n) && !math.IsInf(n, 0)
}

func floatAtLeast(lower float64) func(string) string {
	return func(value string) string {
		if n, ok := parseFinite(value); !ok || n < lower {
			return fmt.Sprintf("must be a number greater than or equal to %v", lower)
		}
		return ""
	}
}

func floatBetween(lower, upper float64) func(string) string {
	return func(value string) string {
		if n, ok := parseFinite(value); !ok || n < lower || n > upper {
			return fmt.Sprintf("must be a number between %v and %v, inclusive", lower, upper)
		}
		return ""
	}
}

func burstCapacity(value string) string {
	if n, ok := parseFinite(value); !ok || n < 0 && n != -1 {
		return "must be a number greater than or equal to 0, or -1 for no limit"
	}
	return ""
}

func durationBetween(lower, upper time.Duration) func(string) string {
	return func(value string) string {
		if d, err := time.ParseDuration(value); err != nil || d < lower || d > upper {
			return fmt.Sprintf("must be a duration between %v and %v, inclusive", lower, upper)
		}
		return ""
	}
}

func secondPrecision(value string) string {
	if d, err := time.ParseDuration(value); err == nil && d%time.Second != 0 {
		return wholeSeconds
	}
	return ""
}
