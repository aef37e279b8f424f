// Package routing has the immutable values that controllers pass to the data plane of Serving: host names, their traffic splits, and the
// options of Revisions, parsed.
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

// Revision is a Revision with the fields that gateway and autoscaler use. Immutable.
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
	// Target is the value of the metric for one backend. The autoscaler aims at TargetUtilization percent of it.
	Target, TargetUtilization *float64
	// BurstCapacity is the target burst capacity: 0 means none, -1 any number of requests.
	BurstCapacity *float64
	// PanicWindow and PanicThreshold are percentages, of the stable window and of the ready capacity.
	PanicWindow, PanicThreshold *float64
	// Min, Max, Initial and Activation are numbers of backends. A Max of 0 means no limit.
	Min, Max, Initial, Activation *int32
	// StableWindow is the interval over which the metric is averaged.
	StableWindow *time.Duration
	// ScaleDownDelay is the time that demand must be lower before the scale is reduced, Retention the time that the last backend is kept
	// without demand.
	ScaleDownDelay, Retention *time.Duration
	// ProgressDeadline is the time in which the Revision must become ready.
	ProgressDeadline *time.Duration
}

// Route assigns the requests for a Route's host names to Revisions. Immutable.
type Route struct {
	Key   Key
	Hosts []Host
	// Callers restricts the callers of the hosts; nil allows all clients. Nil is omitted from the encoding that replicas compare, as by
	// replicas without the field.
	Callers *Callers `json:",omitempty"`
}

// Callers are the users who may send requests to the hosts of a Route: with a token, and with the permission to invoke an object in
// the namespace of the Route. Immutable.
type Callers struct {
	// Audiences are the audiences of which a token must have one. The first one is named to callers without a token.
	Audiences []string
	// Group, Resource and Name name the object.
	Group, Resource, Name string
}

// Host is one host name of a Route.
type Host struct {
	// Name is in lower case, without port and without trailing dot. The first label may be "*", which stands for any label, unless another
	// host has that name.
	Name string
	// Targets' percents sum to 100.
	Targets []Target
	// Alias is the host of another route that this one stands for. Requests get its Revisions, and its name as their Host; Targets and
	// Tags are nil. Nil for all other hosts.
	Alias *Alias `json:",omitempty"`
	// Paths replace Alias for the requests below a path. The longest prefix counts. Hosts with Targets have none.
	Paths []Path `json:",omitempty"`
	// Tags maps the values of the tag header to Revisions. Nil for the host names of tags.
	Tags map[string]Key
	// ClusterLocal is true if the host is for requests from within the cluster only; it is unknown to others.
	ClusterLocal bool
	// RedirectToHTTPS is true if requests without TLS are redirected to HTTPS. It has no effect on a cluster-local host. A false value is
	// omitted from the encoding that replicas compare, as by replicas without the field.
	RedirectToHTTPS bool `json:",omitempty"`
	// Certificate is true if the gateway of this replica has a certificate for the host. Replicas compare it, so that a Route counts as served
	// once all gateways have its certificates.
	Certificate bool `json:",omitempty"`
}

// Path is a part of a host that stands for another host.
type Path struct {
	// Prefix is the path, such as /api. It consists of segments with a slash before each, without characters that URLs encode.
	Prefix string
	// Alias is nil if requests are answered as not found.
	Alias *Alias
}

// Alias names a host of a route.
type Alias struct {
	Route Key
	// Host is a name like Host.Name.
	Host string
}

// Target is a share of the requests to a host.
type Target struct {
	Revision Key
	// Percent is 1 to 100.
	Percent int
}
