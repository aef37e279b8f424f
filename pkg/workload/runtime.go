// Package workload is the interface to the place where revisions run: as Pods of a cluster, or as processes
// of this machine. Its users do not depend on which.
package workload

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// Key names a Revision.
type Key = types.NamespacedName

// Runtime runs the instances of revisions. Its methods may be called concurrently, return without waiting for
// instances, and repeat without harm.
type Runtime interface {
	// Apply makes a revision known: from then on Scale has an effect on it. A revision of the same name but
	// another UID replaces the one known before. An error means that it is worth trying again; what is wrong
	// with the revision itself is in its State.
	//
	// writes is true on the replica that creates and deletes the Revision's objects.
	Apply(ctx context.Context, revision *servingv1.Revision, writes bool) error
	// Scale asks for a number of instances. Surplus instances are drained before they end. Unknown revisions
	// are no error.
	Scale(ctx context.Context, revision Key, replicas int32) error
	// Remove drains and stops all backends of the Revision with the given UID, and deletes its state. See Apply for writes.
	Remove(ctx context.Context, revision Key, uid types.UID, writes bool) error
	// State returns what is observed of a revision, and false where it is unknown.
	State(revision Key) (State, bool)
	// Drained notes that a draining instance has none but long-lived requests left, so that it may be told to end.
	Drained(revision Key, instance string)
	// Subscribe has fn called after each change of a revision's State, with the newest one, in order for each
	// revision; the zero State says that it is gone. fn must not block. Call it before Apply.
	Subscribe(fn func(Key, State))
}

// State is what a runtime observes of one revision. Immutable.
type State struct {
	// UID of the revision that the state belongs to.
	UID types.UID
	// Desired is the number of instances last asked for, Ready that of those which take requests.
	Desired, Ready int32
	// Instances are the ready and draining backends, oldest first.
	Instances []Instance
	// Failure is why the revision's newest instances do not become ready, or nil.
	Failure *Failure
	// LogURL is where the revision's logs are.
	LogURL string
	// Resolving is true if the revision waits for its images to be resolved to digests.
	Resolving bool
	// Warning is a sentence about what is not as asked for but keeps no instance from running, such as a tag that
	// was not resolved, or empty.
	Warning string
	// Containers and InitContainers are the images by digest, where the runtime resolves them.
	Containers, InitContainers []servingv1.ContainerStatus
}

// Instance is one running copy of a revision that takes, or took, requests.
type Instance struct {
	// Name is unique among the instances the revision ever has.
	Name string
	// Address is the host:port of the serving port.
	Address string
	// Draining instances finish the requests they have and get no new ones.
	Draining bool
}

// Failure is a reason why instances do not become ready.
type Failure struct {
	// Resources is true if the place lacks a resource (ResourcesAvailable is False); otherwise the containers
	// themselves fail (ContainerHealthy is False).
	Resources bool
	// Reason is a word of docs, such as ExitCode1 or ContainerMissing; Message a sentence for the user.
	Reason, Message string
}
