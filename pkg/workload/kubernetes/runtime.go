// Package kubernetes runs revisions as Pods of the host cluster: for each one Deployment, owned by it across the two
// servers, with nothing but the user's containers in it.
//
// Instances are seen by a watch of the Pods. One that starts is probed from here as well as by the kubelet, so that
// requests reach it as soon as it takes them. One that goes away, whoever deletes it, is held by a preStop hook: the
// kubelet asks this server, which answers once no gateway has a request left at it. The baseline Pod Security level
// admits no such hook; where a namespace enforces it, the hook is to sleep for some seconds, after which requests are the
// container's own concern. That needs Kubernetes 1.30 or later.
package kubernetes

import (
	"cmp"
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/kubernetes/images"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/revisions"
)

// Resolver finds out what images are.
type Resolver interface {
	Resolve(ctx context.Context, pull images.Pull, image string) (images.Image, error)
}

// Options are what a Runtime needs to know.
type Options struct {
	// Client reaches the host cluster. Required.
	Client kubernetes.Interface
	// Images resolves tags to digests. Required.
	Images Resolver
	// Settings returns the operator's choices of now. Required.
	Settings func() *settings.Settings
	// Drain returns once no gateway has a request left at an instance. Without it, one call of Drained will do.
	Drain func(ctx context.Context, revision workload.Key, instance string) error
	// DrainAddress returns where the kubelet reaches DrainHandler, by an IP address as its names are not the cluster's.
	// Nil, and no host, have instances that go away sleep instead.
	DrainAddress func() (host string, port int32)
	// LogURL returns where a revision's logs are. May be nil.
	LogURL func(revision workload.Key) string
	// Leading reports whether this replica leads: the others need not know why a Pod does not come. Nil stands for one that is
	// alone.
	Leading func() bool
	// Clock times probes and retries. Defaults to the real one.
	Clock clock.WithDelayedExecution
	// Logger defaults to klog's.
	Logger klog.Logger
}

// Runtime is a workload.Runtime.
type Runtime struct {
	options Options
	client  kubernetes.Interface
	clock   clock.WithDelayedExecution
	logger  klog.Logger
	pacer   pacer
	// warnings tell why Pods do not come.
	warnings *warnings
	// ctx ends what goes on in the background: it is that of Start.
	ctx       context.Context
	revisions *revisions.Table[*revision]
}

var _ workload.Runtime = (*Runtime)(nil)

// New returns a Runtime, to be started by Start.
func New(o Options) (*Runtime, error) {
	if o.Client == nil || o.Images == nil || o.Settings == nil {
		return nil, errors.New("a client, a resolver of images and settings are required")
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Logger.GetSink() == nil {
		o.Logger = klog.Background()
	}
	if o.Leading == nil {
		o.Leading = func() bool { return true }
	}
	rt := &Runtime{
		options: o, client: o.Client, clock: o.Clock, logger: o.Logger,
		warnings: &warnings{client: o.Client, namespaces: map[string]*followed{}},
		ctx:      context.Background(),
	}
	rt.revisions = revisions.New(func(entry *revisions.Entry) *revision {
		return &revision{Entry: entry, runtime: rt, pods: map[types.UID]*pod{}}
	})
	return rt, nil
}

// Apply makes a revision known and, on the replica that leads, its Deployment. What is wrong with it is in its State.
// Images are resolved in the background first: subscribers are called when it is time to apply the revision again.
func (rt *Runtime) Apply(ctx context.Context, revision *servingv1.Revision, writes bool) error {
	r := rt.revisions.LockOrCreate(types.NamespacedName{Namespace: revision.Namespace, Name: revision.Name})
	create := r.apply(revision, writes)
	r.Unlock()
	if create == nil {
		return nil
	}
	return r.create(ctx, revision, *create)
}

// Scale asks for a number of instances. Which of them go is up to the ReplicaSet: those that are not ready first.
func (rt *Runtime) Scale(ctx context.Context, key workload.Key, replicas int32) error {
	r, ok := rt.revisions.Lock(key)
	if !ok {
		return nil
	}
	return r.scale(ctx, max(replicas, 0))
}

// Activate asks for one instance where none is asked for. Unlike Scale it is for any replica of the server to call,
// whether it leads or not, when a request waits.
func (rt *Runtime) Activate(ctx context.Context, key workload.Key) error {
	r, ok := rt.revisions.Lock(key)
	if !ok {
		return nil
	}
	return r.activate(ctx)
}

// Remove deletes the Deployment of a revision, which the host's garbage collector does as well. The revision is
// forgotten when its last Pod is gone.
func (rt *Runtime) Remove(ctx context.Context, key workload.Key, uid types.UID, writes bool) error {
	r, ok := rt.revisions.Lock(key)
	if !ok {
		return nil
	}
	return r.remove(ctx, uid, writes)
}

// State returns the latest State of a Revision.
func (rt *Runtime) State(key workload.Key) (workload.State, bool) { return rt.revisions.State(key) }

// Drained reports that this replica has no request left at a draining instance. It has an effect where there is no
// Options.Drain.
func (rt *Runtime) Drained(key workload.Key, instance string) {
	if r, ok := rt.revisions.Lock(key); ok {
		defer r.Unlock()
		r.drained(instance)
	}
}

// Subscribe adds a function to call after each change, and when a Revision has to be applied again. fn may call the Runtime.
func (rt *Runtime) Subscribe(fn func(workload.Key, workload.State)) { rt.revisions.Subscribe(fn) }

// oldestFirst orders Pods.
func oldestFirst(a, b *pod) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}
