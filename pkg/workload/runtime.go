// Package workload defines the interface to run Revisions, as Pods of a cluster or as processes of this machine. Users of
// the interface do not depend on the implementation.
package workload

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// Runtime runs the backends of Revisions. Its methods may be called concurrently, return without waiting for backends, and
// are idempotent.
type Runtime interface {
	// Apply registers a Revision, so that Scale has an effect on it. A Revision with the same name and another UID replaces
	// the registered one. Errors are transient: the caller should retry. Permanent faults of the Revision are reported in
	// its State.
	//
	// writes is true on the replica that creates and deletes the Revision's objects.
	Apply(ctx context.Context, revision *servingv1.Revision, writes bool) error
	// Scale sets the number of backends. Surplus backends are drained before they stop. Unknown Revisions are ignored.
	Scale(ctx context.Context, revision types.NamespacedName, replicas int32) error
	// Remove drains and stops all backends of the Revision with the given UID, and deletes its state. See Apply for writes.
	Remove(ctx context.Context, revision types.NamespacedName, uid types.UID, writes bool) error
	// State returns the observed state of a Revision, and false if the Revision is unknown.
	State(revision types.NamespacedName) (State, bool)
	// StartOf returns when the steps of a backend's start were observed, and false if the backend is unknown.
	StartOf(revision types.NamespacedName, backend string) (Start, bool)
	// Drained reports that a draining backend has no requests left except long-lived ones, so that it may be stopped.
	Drained(revision types.NamespacedName, backend string)
	// Subscribe adds a function that is called with the latest State of a Revision after each change, in order for each
	// Revision. A zero State means that the Revision was removed. fn must not block. Call Subscribe before Apply.
	Subscribe(fn func(types.NamespacedName, State))
}

// State is the observed state of one Revision. Immutable.
type State struct {
	// UID is the UID of the Revision.
	UID types.UID
	// Desired is the number of backends requested last, Ready the number of backends that accept requests.
	Desired, Ready int32
	// Instances are the ready and draining backends, oldest first.
	Instances []Instance
	// Failure describes why the newest backends do not become ready, or is nil.
	Failure *Failure
	// LogURL is the location of the Revision's logs.
	LogURL string
	// Resolving is true while the images of the Revision are being resolved to digests.
	Resolving bool
	// Warning is a sentence about a difference from the Revision's spec that does not prevent backends from running, such
	// as an unresolved tag, or empty.
	Warning string
	// Containers and InitContainers are the images by digest, if the runtime resolves them.
	Containers, InitContainers []servingv1.ContainerStatus
}

// Instance is one backend of a Revision that is ready or draining.
type Instance struct {
	// Name is unique among all backends that the Revision ever has.
	Name string
	// Address is the host:port of the serving port.
	Address string
	// Draining backends finish their requests and receive no new ones.
	Draining bool
}

// Start is when this replica observed the steps of a backend's start. A zero time was not observed.
type Start struct {
	// Scaled is when the scale of the Revision left zero, Created when the backend was created, Scheduled when its Pod got a node,
	// Started when all its containers ran, with their images pulled, and Ready when it first accepted requests.
	Scaled, Created, Scheduled, Started, Ready time.Time
}

// Failure describes why backends do not become ready.
type Failure struct {
	// Resources is true if a resource is missing (ResourcesAvailable is False). Otherwise the containers fail
	// (ContainerHealthy is False).
	Resources bool
	// Reason is documented, such as ExitCode1 or ContainerMissing; Message is a sentence for the user.
	Reason, Message string
}
