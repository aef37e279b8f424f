// Package process runs revisions as processes of this machine: the command and args of their containers, not
// their images. An instance is one process group for each container, with a port of its own on the loopback
// interface.
//
// A process runs in workingDir, or else in the working directory of the server, with the server's PATH, HOME, USER,
// LANG, TZ and TMPDIR, none of its other variables, and those of the runtime contract: PORT, K_SERVICE,
// K_CONFIGURATION, K_REVISION, besides HOSTNAME, the name of the instance.
//
// What of a Pod makes no sense here, or needs an isolation that processes do not have:
//   - Volumes and variables from ConfigMaps and Secrets cannot be provided; revisions that need them fail.
//   - Any container that exits ends its instance, which is then started again under another name.
//   - Requests of resources are ignored. Limits hold where the server may create cgroups.
//   - Of securityContext, runAsUser and runAsGroup are honoured.
//
// No process outlives the server: the kernel ends the containers' processes with it, and what these have
// started besides is found and ended when the server starts again.
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
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/revisionlog"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/revisions"
)

// Options are what a Runtime needs to know.
type Options struct {
	// DataDir is where logs and the records of running processes are kept. Required; it belongs to one
	// Runtime at a time, and must stay the same over restarts for leftovers to be found.
	DataDir string
	// Logger defaults to klog's.
	Logger klog.Logger
	// Clock times probes, restarts and terminations. Defaults to the real one.
	Clock clock.WithDelayedExecution
	// DrainTimeout bounds how long requests may take to finish, and GracePeriod how long processes may take
	// to end thereafter, once the context of Run has ended. They default to 10 and 5 seconds.
	DrainTimeout, GracePeriod time.Duration
	// Objects reads what revisions refer to. Nil means that there are no such objects.
	Objects Objects
	// Wake asks for an instance of a revision that has none, because an object for which its last one waited has changed.
	// It must not block. Nil does nothing.
	Wake func(revision workload.Key)
}

// Runtime is a workload.Runtime.
type Runtime struct {
	logger      klog.Logger
	clock       clock.WithDelayedExecution
	drain       time.Duration
	grace       time.Duration
	environment []string
	objects     Objects
	wake        func(revision workload.Key)
	// volumes is the directory of the volumes of all instances.
	volumes string
	owner   *owner
	spawner *spawner
	cgroups *cgroup.Groups
	ports   *ports
	logs    *logfile.Files
	pacer   pacer
	// stopping is set once Run ends everything. From then on nothing is started.
	stopping atomic.Bool
	// running counts the instances, live holds their names.
	running sync.WaitGroup
	live    sync.Map
	ended   chan struct{}

	revisions *revisions.Table[*revision]
}

var _ workload.Runtime = (*Runtime)(nil)

// New takes possession of the data directory and ends what processes an earlier Runtime of this directory has
// left, before any other is started. It fails where another Runtime uses the directory. Run must be called
// for what is returned to be given up again.
func New(o Options) (*Runtime, error) {
	if o.Logger.GetSink() == nil {
		o.Logger = klog.Background()
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Objects == nil {
		o.Objects = noObjects{}
	}
	if o.Wake == nil {
		o.Wake = func(workload.Key) {}
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
	owner.endLeftovers(o.Logger)
	volumes := filepath.Join(dir, "volumes")
	if err := os.RemoveAll(volumes); err != nil {
		owner.close()
		return nil, fmt.Errorf("remove the volumes of earlier processes: %w", err)
	}
	rt := &Runtime{
		logger: o.Logger, clock: o.Clock, drain: o.DrainTimeout, grace: o.GracePeriod,
		environment: baseEnvironment(os.LookupEnv), objects: o.Objects, wake: o.Wake, volumes: volumes,
		owner: owner, spawner: newSpawner(owner), cgroups: cgroup.New(owner.id, o.Logger), ports: newPorts(),
		logs:  &logfile.Files{Root: filepath.Join(dir, "logs")},
		ended: make(chan struct{}, 1),
	}
	rt.revisions = revisions.New(func(entry *revisions.Entry) *revision { return &revision{Entry: entry, runtime: rt} })
	return rt, nil
}

// Run keeps the logs within bounds until ctx is canceled. Then it drains all instances, ends them, and returns when
// no process is left. Whoever reports Drained must do so until then.
func (rt *Runtime) Run(ctx context.Context) {
	var background sync.WaitGroup
	quit, stop := context.WithCancel(context.WithoutCancel(ctx))
	background.Go(func() { rt.boundLogs(quit) })
	background.Go(func() { rt.endStrays(quit) })
	<-ctx.Done()
	rt.shutdown()
	stop()
	background.Wait()
	rt.cgroups.Close()
	rt.spawner.close()
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
		for _, i := range r.instances {
			i.stop()
		}
	})
	if within(rt.grace) {
		return
	}
	all(func(r *revision) {
		for _, i := range r.instances {
			i.kill()
		}
	})
	<-gone
}

// Apply makes a revision known. What is wrong with it for good, such as a missing command, is in its State
// when Apply returns.
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

// Scale asks for a number of instances.
func (rt *Runtime) Scale(_ context.Context, key workload.Key, replicas int32) error {
	if r, ok := rt.revisions.Lock(key); ok {
		defer r.Unlock()
		r.scale(replicas)
	}
	return nil
}

// Remove drains and ends all instances of a revision. Then its logs are deleted and it is forgotten.
func (rt *Runtime) Remove(_ context.Context, key workload.Key, uid types.UID, _ bool) error {
	if r, ok := rt.revisions.Lock(key); ok {
		defer r.Unlock()
		r.remove(uid)
	}
	return nil
}

// State returns the latest State of a Revision.
func (rt *Runtime) State(key workload.Key) (workload.State, bool) { return rt.revisions.State(key) }

// Drained has a draining instance end without waiting any longer.
func (rt *Runtime) Drained(key workload.Key, name string) {
	if r, ok := rt.revisions.Lock(key); ok {
		defer r.Unlock()
		r.drained(name)
	}
}

// Subscribe adds a function to call after each change. fn may call the Runtime.
func (rt *Runtime) Subscribe(fn func(workload.Key, workload.State)) { rt.revisions.Subscribe(fn) }

// Logs returns the logs of all Revisions.
func (rt *Runtime) Logs() revisionlog.Source {
	return logfile.Source{Files: rt.logs, Serving: func(revision *servingv1.Revision) string {
		return revision.Spec.Containers[servingContainer(revision.Spec.Containers)].Name
	}}
}

// ObjectChanged reports that an object was created, changed or deleted. Instances that wait for it start at once.
func (rt *Runtime) ObjectChanged(reference Reference) {
	for _, r := range rt.revisions.All() {
		if r.Key.Namespace != reference.Namespace {
			continue
		}
		r.Lock()
		wake := r.objectChanged(reference)
		r.Unlock()
		if wake {
			rt.wake(r.Key)
		}
	}
}

const (
	logInterval   = 10 * time.Second
	strayInterval = time.Second
)

// boundLogs shortens the logs of running instances that have become too large.
func (rt *Runtime) boundLogs(ctx context.Context) {
	for backoff.Sleep(ctx, rt.clock, logInterval) {
		rt.live.Range(func(_, value any) bool {
			i := value.(*instance)
			if err := rt.logs.Bound(i.revision.Key, i.name); err != nil {
				i.logger().Error(err, "Failed to truncate log")
			}
			return ctx.Err() == nil
		})
	}
}

// endStrays ends processes that have left the group of an instance that is no more, soon after it has ended.
func (rt *Runtime) endStrays(ctx context.Context) {
	live := func(name string) bool {
		_, ok := rt.live.Load(name)
		return ok
	}
	defer rt.owner.endStrays(rt.logger, live)
	for {
		select {
		case <-ctx.Done():
			return
		case <-rt.ended:
		}
		rt.owner.endStrays(rt.logger, live)
		if !backoff.Sleep(ctx, rt.clock, strayInterval) {
			return
		}
	}
}
