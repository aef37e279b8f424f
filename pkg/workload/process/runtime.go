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
	cgroups *cgroups
	ports   *ports
	logs    *logs
	pacer   pacer
	// stopping is set once Run ends everything. From then on nothing is started.
	stopping atomic.Bool
	// running counts the instances, live holds their names.
	running sync.WaitGroup
	live    sync.Map
	ended   chan struct{}

	mu          sync.RWMutex
	revisions   map[workload.Key]*revision
	subscribers []func(workload.Key, workload.State)
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
		return nil, fmt.Errorf("finding the directory of processes: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("creating the directory of processes: %w", err)
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
	return &Runtime{
		logger: o.Logger, clock: o.Clock, drain: o.DrainTimeout, grace: o.GracePeriod,
		environment: baseEnvironment(os.LookupEnv), objects: o.Objects, wake: o.Wake, volumes: volumes,
		owner: owner, spawner: newSpawner(owner), cgroups: newCgroups(owner.id, o.Logger), ports: newPorts(),
		logs:      &logs{root: filepath.Join(dir, "logs")},
		ended:     make(chan struct{}, 1),
		revisions: map[workload.Key]*revision{},
	}, nil
}

// Run keeps the logs within bounds until ctx ends. Then it drains all instances, ends them, and returns when
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
	rt.cgroups.close()
	rt.spawner.close()
	rt.owner.close()
}

func (rt *Runtime) shutdown() {
	rt.stopping.Store(true)
	all := func(do func(r *revision)) {
		for _, r := range rt.known() {
			r.mu.Lock()
			do(r)
			r.unlock()
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

// known returns all revisions.
func (rt *Runtime) known() []*revision {
	rt.mu.RLock()
	defer rt.mu.RUnlock()
	all := make([]*revision, 0, len(rt.revisions))
	for _, r := range rt.revisions {
		all = append(all, r)
	}
	return all
}

// locked returns a revision with its lock held, or nil where it is unknown.
func (rt *Runtime) locked(key workload.Key) *revision {
	rt.mu.RLock()
	r := rt.revisions[key]
	rt.mu.RUnlock()
	if r == nil {
		return nil
	}
	r.mu.Lock()
	if r.gone {
		r.mu.Unlock()
		return nil
	}
	return r
}

// lockedOrNew is like locked, but makes unknown revisions known.
func (rt *Runtime) lockedOrNew(key workload.Key) *revision {
	for {
		if r := rt.locked(key); r != nil {
			return r
		}
		rt.mu.Lock()
		if rt.revisions[key] == nil {
			rt.revisions[key] = &revision{runtime: rt, key: key}
		}
		rt.mu.Unlock()
	}
}

// forget makes a revision unknown. Its lock is held.
func (rt *Runtime) forget(r *revision) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	delete(rt.revisions, r.key)
}

// Apply makes a revision known. What is wrong with it for good, such as a missing command, is in its State
// when Apply returns.
func (rt *Runtime) Apply(_ context.Context, revision *servingv1.Revision, _ bool) error {
	if rt.stopping.Load() {
		return fmt.Errorf("running revision %q: %w", revision.Name, errStopping)
	}
	r := rt.lockedOrNew(types.NamespacedName{Namespace: revision.Namespace, Name: revision.Name})
	defer r.unlock()
	r.apply(revision)
	return nil
}

var errStopping = errors.New("the server is stopping")

// Scale asks for a number of instances.
func (rt *Runtime) Scale(_ context.Context, key workload.Key, replicas int32) error {
	if r := rt.locked(key); r != nil {
		defer r.unlock()
		r.scale(replicas)
	}
	return nil
}

// Remove drains and ends all instances of a revision. Then its logs are deleted and it is forgotten.
func (rt *Runtime) Remove(_ context.Context, key workload.Key, uid types.UID, _ bool) error {
	if r := rt.locked(key); r != nil {
		defer r.unlock()
		r.remove(uid)
	}
	return nil
}

// State returns what is observed of a revision.
func (rt *Runtime) State(key workload.Key) (workload.State, bool) {
	rt.mu.RLock()
	r := rt.revisions[key]
	rt.mu.RUnlock()
	if r == nil {
		return workload.State{}, false
	}
	state := r.state.Load()
	if state == nil {
		return workload.State{}, false
	}
	return *state, true
}

// Drained has a draining instance end without waiting any longer.
func (rt *Runtime) Drained(key workload.Key, name string) {
	if r := rt.locked(key); r != nil {
		defer r.unlock()
		r.drained(name)
	}
}

// Subscribe has fn called after each change. fn may call the Runtime's methods.
func (rt *Runtime) Subscribe(fn func(workload.Key, workload.State)) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.subscribers = append(rt.subscribers, fn)
}

// ObjectChanged reports that an object was created, changed or deleted. Instances that wait for it start at once.
func (rt *Runtime) ObjectChanged(reference Reference) {
	for _, r := range rt.known() {
		if r.key.Namespace != reference.Namespace {
			continue
		}
		r.mu.Lock()
		wake := r.objectChanged(reference)
		r.unlock()
		if wake {
			rt.wake(r.key)
		}
	}
}

func (rt *Runtime) publish(key workload.Key, state workload.State) {
	rt.mu.RLock()
	subscribers := rt.subscribers
	rt.mu.RUnlock()
	for _, fn := range subscribers {
		fn(key, state)
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
			if err := rt.logs.bound(i.revision.key, i.name); err != nil {
				i.logger().Error(err, "Shortening a log failed")
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
