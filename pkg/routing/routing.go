// Package routing holds the immutable values that controllers hand to the data plane: which host names there
// are, which revisions their requests go to, and how these revisions want to be treated.
package routing

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Key names a Route or a Revision.
type Key = types.NamespacedName

// Protocol is what a revision's containers speak.
type Protocol string

const (
	// HTTP1 is HTTP/1.1, the default.
	HTTP1 Protocol = "http1"
	// H2C is HTTP/2 without TLS: container port name "h2c".
	H2C Protocol = "h2c"
)

// Revision is what gateway and autoscaler know about a revision. Immutable once handed over.
type Revision struct {
	Key Key
	UID types.UID
	// Service and Configuration are the names that metrics carry; Service may be empty.
	Service, Configuration string
	Protocol               Protocol
	// ContainerConcurrency bounds the requests of one instance at a time; 0 means no bound.
	ContainerConcurrency int
	// Timeout limits the time from the arrival of a request until its response starts, and that without traffic of an
	// upgraded connection. ResponseStartTimeout limits the time from when the request is sent until the response starts,
	// IdleTimeout the time without any byte; 0 is no limit.
	Timeout, ResponseStartTimeout, IdleTimeout time.Duration
	// Annotations of the Revision, for autoscaling (servingv1.AutoscalingAnnotation).
	Annotations map[string]string
	// Reachable tells whether a Route refers to the revision.
	Reachable bool
	// Started tells whether the revision has been ready before: its initial scale is behind it.
	Started bool
}

// Route is the distribution of the requests to one Route's host names. Immutable once handed over.
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
	// Tags are the revisions that the tag header picks, by tag. Nil for the host names of tags.
	Tags map[string]Key
	// ClusterLocal tells that the host is for requests from within the cluster only: from outside it is unknown.
	ClusterLocal bool
}

// Target is a share of the requests to a host.
type Target struct {
	Revision Key
	// Percent is 1 to 100.
	Percent int
}
