// Package routing holds the immutable values that controllers pass to the data plane of Serving: host names, their traffic splits, and
// the options of Revisions, parsed.
package routing

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Key names a Route or a Revision.
type Key = types.NamespacedName

// Protocol is the protocol of a Revision's containers.
type Protocol string

const (
	// HTTP1 is HTTP/1.1, the default.
	HTTP1 Protocol = "http1"
	// H2C is HTTP/2 without TLS: container port name "h2c".
	H2C Protocol = "h2c"
)

// Revision is a Revision as gateway and autoscaler need it. Immutable.
type Revision struct {
	Key Key
	UID types.UID
	// Service and Configuration are names for metrics; Service may be empty.
	Service, Configuration string
	Protocol               Protocol
	// ContainerConcurrency bounds the requests of one backend at a time; 0 means no bound.
	ContainerConcurrency int
	// Timeout bounds the time from the arrival of a request until its response starts, and the time without traffic on an upgraded
	// connection. ResponseStartTimeout bounds the time from sending the request to a backend until the response starts, IdleTimeout
	// the time without any byte; 0 means no bound.
	Timeout, ResponseStartTimeout, IdleTimeout time.Duration
	Autoscaling                                Autoscaling
	// Reachable is true if a Route refers to the Revision.
	Reachable bool
	// Started is true if the Revision was ready before; its initial scale has no effect then.
	Started bool
}

// Autoscaling holds the autoscaling options that a Revision sets. A nil option has the value of the operator's settings, which may
// change while the Revision runs.
type Autoscaling struct {
	// RPS is true if the Revision scales on requests per second instead of concurrency.
	RPS bool
	// Target is the value of the metric for one backend, of which TargetUtilization (in percent) is aimed at.
	Target, TargetUtilization *float64
	// BurstCapacity is the target burst capacity: 0 means none, -1 any number of requests.
	BurstCapacity *float64
	// PanicWindow and PanicThreshold are percentages, of the stable window and of the ready capacity.
	PanicWindow, PanicThreshold *float64
	// Min, Max, Initial and Activation are numbers of backends. A Max of 0 means no limit.
	Min, Max, Initial, Activation *int32
	// StableWindow is the interval over which the metric is averaged.
	StableWindow *time.Duration
	// ScaleDownDelay is how long demand must be lower before it counts, Retention how long the last backend is kept without demand.
	ScaleDownDelay, Retention *time.Duration
	// ProgressDeadline is how long the Revision may take to become ready.
	ProgressDeadline *time.Duration
}

// Route assigns the requests for a Route's host names to Revisions. Immutable.
type Route struct {
	Key   Key
	Hosts []Host
}

// Host is one host name of a Route.
type Host struct {
	// Name is in lower case, without port and without trailing dot.
	Name string
	// Targets' percents sum to 100.
	Targets []Target
	// Tags maps the values of the tag header to Revisions. Nil for the host names of tags.
	Tags map[string]Key
	// ClusterLocal is true if the host is for requests from within the cluster only; it is unknown to others.
	ClusterLocal bool
}

// Target is a share of the requests to a host.
type Target struct {
	Revision Key
	// Percent is 1 to 100.
	Percent int
}
