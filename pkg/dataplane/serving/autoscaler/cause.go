package autoscaler

import (
	"fmt"
	"strconv"
	"time"
)

// The reasons of decisions. They are part of the API: docs/serving.md lists them.
const (
	reasonNoRequests          = "NoRequests"
	reasonRequest             = "RequestWaiting"
	reasonQueue               = "RequestsWaiting"
	reasonPeerRequest         = "ActivatedByAnotherReplica"
	reasonStableAverage       = "StableAverage"
	reasonPanicAverage        = "PanicAverage"
	reasonMaxScaleUpRate      = "MaxScaleUpRate"
	reasonMaxScaleDownRate    = "MaxScaleDownRate"
	reasonScaleDownDelay      = "ScaleDownDelay"
	reasonActivationScale     = "ActivationScale"
	reasonMinScale            = "MinScale"
	reasonInitialScale        = "InitialScale"
	reasonScaleToZeroDisabled = "ScaleToZeroDisabled"
	reasonStableWindow        = "StableWindow"
	reasonRetention           = "ScaleToZeroPodRetention"
	reasonGatewayMissing      = "GatewayMissing"
	reasonFailing             = "Failing"
	reasonMaxScale            = "MaxScale"
	reasonRunning             = "Running"
)

// cause is why a revision has its scale. The zero cause belongs to a revision without a decision.
type cause struct {
	reason string
	// average is the average over the window that the reason names, needs the number of backends that it requires at the target.
	average float64
	needs   int32
	// scale is the number of backends that the reason requires or allows.
	scale int32
	// until is when the reason ends unless it is renewed, or zero.
	until time.Time
}

// of returns the cause with a scale.
func (why cause) of(scale int32) cause {
	why.scale = scale
	return why
}

// message returns the cause in a sentence.
func (why *cause) message(c *config) string {
	switch why.reason {
	case reasonNoRequests:
		if !c.Reachable {
			return "No Route refers to the Revision, and it has no requests."
		}
		return fmt.Sprintf("No requests in the stable window of %s.", c.StableWindow)
	case reasonRequest:
		return "A request waits for an instance."
	case reasonQueue:
		return fmt.Sprintf("No instance is ready, and %s would serve all waiting requests at a time.", instances(why.needs))
	case reasonPeerRequest:
		return "Another replica started an instance for a waiting request."
	case reasonStableAverage:
		return why.averageMessage(c, "Stable") + "."
	case reasonPanicAverage:
		return fmt.Sprintf("Panic mode, which does not scale down until %s at the earliest: %s.", clockTime(why.until), why.averageMessage(c, "panic"))
	case reasonMaxScaleUpRate:
		return fmt.Sprintf("%s; max-scale-up-rate allows %d now.", why.averageMessage(c, "Stable"), why.scale)
	case reasonMaxScaleDownRate:
		return fmt.Sprintf("%s; max-scale-down-rate keeps %d now.", why.averageMessage(c, "Stable"), why.scale)
	case reasonScaleDownDelay:
		return fmt.Sprintf("%s; the scale-down delay of %s keeps %d until %s.", why.averageMessage(c, "Stable"), c.ScaleDownDelay, why.scale, clockTime(why.until))
	case reasonActivationScale:
		return fmt.Sprintf("The activation scale is %d.", c.Activation)
	case reasonMinScale:
		return fmt.Sprintf("The minimum scale is %d.", c.Min)
	case reasonInitialScale:
		return fmt.Sprintf("The initial scale is %d.", c.Initial)
	case reasonScaleToZeroDisabled:
		return "Scaling to zero is disabled by enable-scale-to-zero of config-autoscaler."
	case reasonStableWindow:
		return fmt.Sprintf("The last instance stays for the stable window of %s after it became ready, until %s.", c.StableWindow, clockTime(why.until))
	case reasonRetention:
		return fmt.Sprintf("Without requests the last instance stays for the retention period of %s, until %s.", c.Retention, clockTime(why.until))
	case reasonGatewayMissing:
		return "A gateway that stopped reporting may have requests."
	case reasonFailing:
		return "The newest instances do not become ready, so waiting requests start no more."
	case reasonMaxScale:
		return fmt.Sprintf("%s would be needed; the maximum scale is %d.", instances(why.needs), c.Max)
	case reasonRunning:
		return fmt.Sprintf("%s ran when this replica began to decide; the load is not known yet.", instances(why.scale))
	}
	return ""
}

// averageMessage returns what the average of a window requires.
func (why *cause) averageMessage(c *config, window string) string {
	unit := "requests in flight"
	if c.RPS {
		unit = "requests per second"
	}
	return fmt.Sprintf("%s average of %s %s at a target of %s per instance needs %s",
		window, number(why.average), unit, number(c.Target), instances(why.needs))
}

// instances returns a number of instances in words.
func instances(n int32) string {
	if n == 1 {
		return "1 instance"
	}
	return fmt.Sprintf("%d instances", n)
}

// number returns a number with three significant digits, without an exponent.
func number(v float64) string {
	if v >= 100 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	if v > 0 && v < 0.001 {
		return "less than 0.001"
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// clockTime returns a time for a message.
func clockTime(t time.Time) string { return t.UTC().Format(time.RFC3339) }
