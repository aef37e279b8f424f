// Package kubernetes runs Revisions as Pods of the host cluster. Each Revision has one Deployment with the user's
// containers and no others. The Revision owns the Deployment, although they are in different servers.
//
// Backends are observed by a watch of Pods. This server probes starting Pods as well as the kubelet does, so that requests
// reach them without delay. A preStop hook holds a deleted Pod: the kubelet calls this server, which responds once no
// gateway has a request in flight at the Pod. The baseline Pod Security level rejects such hooks. In namespaces that
// enforce it, the hook sleeps for some seconds, and containers must finish later requests after SIGTERM. This requires
// Kubernetes 1.30 or later.
package kubernetes

import (
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

// Resolver resolves images.
type Resolver interface {
	Resolve(ctx context.Context, pull images.Pull, image string) (images.Image, error)
}

// Options configure a Runtime.
type Options struct {
	// Client accesses the host cluster. Required.
	Client kubernetes.Interface
	// Images resolves tags to digests. Required.
	Images Resolver
	// Settings returns the operator's current settings. Required.
	Settings func() *settings.Settings
	// Drain returns once no gateway has a request in flight at a backend. If nil, a single call of Drained is enough.
	Drain func(ctx context.Context, revision types.NamespacedName, backend string) error
	// DrainAddress returns the address of DrainHandler for the kubelet, with an IP address as host, because the kubelet
	// does not use the cluster's DNS. If it is nil or returns no host, the preStop hooks sleep.
	DrainAddress func() (host string, port int32)
	// LogURL returns the location of a Revision's logs. May be nil.
	LogURL func(revision types.NamespacedName) string
	// Leading reports whether this replica is the leader. Others do not inspect Pods that fail to start. If nil, this
	// replica always leads.
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
	// warnings are the warning Events of Pods that fail to start.
	warnings *warnings
	// ctx is the context of Start. Canceling it stops all background work.
	ctx       context.Context
	revisions *revisions.Table[*revision]
}

var _ workload.Runtime = (*Runtime)(nil)

// New returns a Runtime. Call Start to start it.
func New(o Options) (*Runtime, error) {
	if o.Client == nil || o.Images == nil || o.Settings == nil {
		return nil, errors.New("client, images and settings are required")
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
		return &revision{Entry: entry, runtime: rt, pods: &pods{entry: entry, runtime: rt, byUID: map[types.UID]*pod{}}}
	})
	return rt, nil
}

// Apply registers a Revision and, if writes is true, creates its Deployment. Permanent faults are in its State. Images are
// resolved in the background first: subscribers are called when the Revision must be applied again.
func (rt *Runtime) Apply(ctx context.Context, revision *servingv1.Revision, writes bool) error {
	r := rt.revisions.LockOrCreate(types.NamespacedName{Namespace: revision.Namespace, Name: revision.Name})
	create := r.apply(revision, writes)
	r.Unlock()
	if create == nil {
		return nil
	}
	return r.create(ctx, revision, *create)
}

// State returns the latest State of a Revision.
func (rt *Runtime) State(key types.NamespacedName) (workload.State, bool) {
	return rt.revisions.State(key)
}

// Subscribe adds a function to call after each change, and when a Revision must be applied again. fn may call the Runtime.
func (rt *Runtime) Subscribe(fn func(types.NamespacedName, workload.State)) {
	rt.revisions.Subscribe(fn)
}
