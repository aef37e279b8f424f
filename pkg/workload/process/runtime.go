// Package process runs Revisions as processes of this machine. It executes the command and args of their containers, not
// their images. A backend is one process group per container, with a port of its own on the loopback interface.
//
// A process runs in workingDir, or in the working directory of the server. It inherits PATH, HOME, USER, LANG, TZ and
// TMPDIR from the server, and no other variable. The runtime contract adds PORT, K_SERVICE, K_CONFIGURATION and K_REVISION;
// HOSTNAME is the name of the backend.
//
// Differences from Pods:
//   - When a container fails or exits, its whole backend is replaced, under another name.
//   - Resource requests are ignored. Limits are enforced if the server may create cgroups.
//   - Of securityContext, only runAsUser and runAsGroup are honoured.
//   - Volumes are mounted on Linux only. ServiceAccount tokens and fields of container resources are not provided.
//
// No process outlives the server: the kernel kills the processes of containers when the server exits. Other descendants are
// found and killed when the server starts again.
package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/backoff"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/process/cgroup"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/process/logfile"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/process/objects"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/process/spawn"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/revisionlog"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/revisions"
)

// Options configure a Runtime.
type Options struct {
	// DataDir holds logs, volumes and the records of running processes. Required. It belongs to one Runtime at a time and
	// must stay the same over restarts, so that processes of an earlier run are found.
	DataDir string
	// Logger defaults to klog's.
	Logger klog.Logger
	// Clock times probes, restarts and terminations. Defaults to the real one.
	Clock clock.WithDelayedExecution
	// DrainTimeout bounds the time for requests to finish after the context of Run is canceled, and GracePeriod the time
	// for processes to exit after that. They default to 10 and 5 seconds.
	DrainTimeout, GracePeriod time.Duration
	// Objects reads the objects that Revisions refer to. Required.
	Objects objects.Reader
	// Activate requests a backend for a Revision without any, because an object that its last backend waited for has changed.
	// It must not block. May be nil.
	Activate func(revision types.NamespacedName)
}

// Runtime is a workload.Runtime.
type Runtime struct {
	logger      klog.Logger
	clock       clock.WithDelayedExecution
	drain       time.Duration
	grace       time.Duration
	environment []string
	objects     objects.Reader
	activate    func(revision types.NamespacedName)
	// volumes is the directory with the volumes of all backends.
	volumes string
	owner   *owner
	spawner *spawn.Spawner
	cgroups *cgroup.Groups
	ports   *ports
	logs    *logfile.Files
	pacer   pacer
	// stopping is true once Run stops all backends. No backend starts after that.
	stopping atomic.Bool
	// running counts the backends, live has them by name.
	running sync.WaitGroup
	live    sync.Map
	ended   chan struct{}

	revisions *revisions.Table[*revision]
}

var _ workload.Runtime = (*Runtime)(nil)

// New locks the data directory, and kills the processes of an earlier Runtime with this directory before any other starts.
// It fails if another Runtime uses the directory. Run releases all resources.
func New(o Options) (*Runtime, error) {
	if o.Logger.GetSink() == nil {
		o.Logger = klog.Background()
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Activate == nil {
		o.Activate = func(types.NamespacedName) {}
	}
	if o.DrainTimeout == 0 {
		o.DrainTimeout = 10 * time.Second
	}
	if o.GracePeriod == 0 {
		o.GracePeriod = 5 * time.Second
	}
	dir, err := filepath.Abs(o.DataDir)
	if err != nil {
		return nil, fmt.Errorf("resolve directory of processes: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create directory of processes: %w", err)
	}
	owner, err := newOwner(dir)
	if err != nil {
		return nil, err
	}
	owner.killLeftovers(o.Logger)
	volumes := filepath.Join(dir, "volumes")
	if err := os.RemoveAll(volumes); err != nil {
		owner.close()
		return nil, fmt.Errorf("remove volumes of earlier processes: %w", err)
	}
	rt := &Runtime{
		logger: o.Logger, clock: o.Clock, drain: o.DrainTimeout, grace: o.GracePeriod,
		environment: baseEnvironment(os.LookupEnv), objects: o.Objects, activate: o.Activate, volumes: volumes,
		owner: owner, spawner: spawn.New(owner.record), cgroups: cgroup.New(owner.id, o.Logger), ports: newPorts(),
		logs:  &logfile.Files{Root: filepath.Join(dir, "logs")},
		ended: make(chan struct{}, 1),
	}
	rt.revisions = revisions.New(func(entry *revisions.Entry) *revision { return &revision{Entry: entry, runtime: rt} })
	return rt, nil
}

// Run bounds the size of logs until ctx is canceled. Then it drains and stops all backends, and returns after the last
// process has exited. Drained must be called until then.
func (rt *Runtime) Run(ctx context.Context) {
	var background sync.WaitGroup
	quit, stop := context.WithCancel(context.WithoutCancel(ctx))
	background.Go(func() { rt.boundLogs(quit) })
	background.Go(func() { rt.killStrays(quit) })
	<-ctx.Done()
	rt.shutdown()
	stop()
	background.Wait()
	rt.cgroups.Close()
	rt.spawner.Close()
	rt.owner.close()
}

func (rt *Runtime) shutdown() {
	rt.stopping.Store(true)
	all := func(do func(r *revision)) {
		for _, r := range rt.revisions.All() {
			r.Lock()
			do(r)
			r.Unlock()
		}
	}
	all((*revision).reconcile)
	gone := make(chan struct{})
	go func() {
		rt.running.Wait()
		close(gone)
	}()
	within := func(d time.Duration) bool {
		timer := rt.clock.NewTimer(d)
		defer timer.Stop()
		select {
		case <-gone:
			return true
		case <-timer.C():
			return false
		}
	}
	if within(rt.drain) {
		return
	}
	all(func(r *revision) {
		for _, b := range r.backends {
			b.stop()
		}
	})
	if within(rt.grace) {
		return
	}
	all(func(r *revision) {
		for _, b := range r.backends {
			b.kill()
		}
	})
	<-gone
}

// Apply registers a Revision. Permanent faults, such as a missing command, are in its State when Apply returns.
func (rt *Runtime) Apply(_ context.Context, revision *servingv1.Revision, _ bool) error {
	if rt.stopping.Load() {
		return fmt.Errorf("run revision %q: %w", revision.Name, errStopping)
	}
	r := rt.revisions.LockOrCreate(types.NamespacedName{Namespace: revision.Namespace, Name: revision.Name})
	defer r.Unlock()
	r.apply(revision)
	return nil
}

var errStopping = errors.New("the server is stopping")

// Scale sets the number of backends.
func (rt *Runtime) Scale(_ context.Context, key types.NamespacedName, replicas int32) error {
	if r, ok := rt.revisions.Lock(key); ok {
		defer r.Unlock()
		r.scale(replicas)
	}
	return nil
}

// Remove drains and stops all backends of a Revision, then deletes its logs and state.
func (rt *Runtime) Remove(_ context.Context, key types.NamespacedName, uid types.UID, _ bool) error {
	if r, ok := rt.revisions.Lock(key); ok {
		defer r.Unlock()
		r.remove(uid)
	}
	return nil
}

// State returns the latest State of a Revision.
func (rt *Runtime) State(key types.NamespacedName) (workload.State, bool) {
	return rt.revisions.State(key)
}

// StartOf returns when the steps of a backend's start happened. Processes are not scheduled.
func (rt *Runtime) StartOf(key types.NamespacedName, name string) (workload.Start, bool) {
	r, ok := rt.revisions.Lock(key)
	if !ok {
		return workload.Start{}, false
	}
	defer r.Unlock()
	return r.startOf(name)
}

// Drained stops a draining backend.
func (rt *Runtime) Drained(key types.NamespacedName, name string) {
	if r, ok := rt.revisions.Lock(key); ok {
		defer r.Unlock()
		r.drained(name)
	}
}

// Subscribe adds a function to call after each change. fn may call the Runtime.
func (rt *Runtime) Subscribe(fn func(types.NamespacedName, workload.State)) {
	rt.revisions.Subscribe(fn)
}

// Logs returns the logs of all Revisions.
func (rt *Runtime) Logs() revisionlog.Source {
	return logfile.Source{Files: rt.logs, Serving: func(revision *servingv1.Revision) string {
		return revision.Spec.Containers[servingContainer(revision.Spec.Containers)].Name
	}}
}

// ObjectChanged reports that an object was created, changed or deleted. Backends that wait for the object start at once.
func (rt *Runtime) ObjectChanged(reference objects.Reference) {
	for _, r := range rt.revisions.All() {
		if r.Key.Namespace != reference.Namespace {
			continue
		}
		r.Lock()
		activate := r.objectChanged(reference)
		r.Unlock()
		if activate {
			rt.activate(r.Key)
		}
	}
}

const (
	logInterval   = 10 * time.Second
	strayInterval = time.Second
)

// boundLogs truncates large logs of running backends until ctx is canceled.
func (rt *Runtime) boundLogs(ctx context.Context) {
	for backoff.Sleep(ctx, rt.clock, logInterval) {
		rt.live.Range(func(_, value any) bool {
			b := value.(*backend)
			if err := rt.logs.Bound(b.revision.Key, b.name); err != nil {
				b.logger().Error(err, "Failed to truncate log")
			}
			return ctx.Err() == nil
		})
	}
}

// killStrays kills processes that left the process group of their backend, after the backend has ended.
func (rt *Runtime) killStrays(ctx context.Context) {
	live := func(name string) bool {
		_, ok := rt.live.Load(name)
		return ok
	}
	defer rt.owner.killStrays(rt.logger, live)
	for {
		select {
		case <-ctx.Done():
			return
		case <-rt.ended:
		}
		rt.owner.killStrays(rt.logger, live)
		if !backoff.Sleep(ctx, rt.clock, strayInterval) {
			return
		}
	}
}
