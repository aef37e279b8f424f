package process

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/process/objects"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/process/spawn"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/process/volumes"
)

// backend serves the requests of a Revision with a process group for each container.
type backend struct {
	revision *revision
	runtime  *Runtime
	plan     *plan
	name     string
	// inputs are the objects that the backend refers to, changes is the revision's change count from before they were read.
	inputs  *objects.Snapshot
	changes int64
	volumes volumes.Dir
	// refresh requests an update of the volumes.
	refresh chan struct{}
	// address is set before the backend is ready.
	address string
	// stopping is closed to terminate the processes, killing to kill them at once.
	stopping, killing chan struct{}
	stop, kill        func()

	// The revision's lock guards the fields below.

	// slot is the slot that the backend occupies, or nil if it is draining or stopping.
	slot            *slot
	ready, draining bool
	// created is the time at which the backend was created, startedAt at which all its containers ran, readySince at which it first became
	// ready.
	created, startedAt, readySince time.Time
	// deadline stops a draining backend.
	deadline clock.Timer
}

func newBackend(r *revision, s *slot) *backend {
	b := &backend{
		revision: r, runtime: r.runtime, plan: r.plan, slot: s, changes: r.changes,
		name: r.Key.Name + "-" + rand.String(8), created: r.runtime.clock.Now(),
		stopping: make(chan struct{}), killing: make(chan struct{}), refresh: make(chan struct{}, 1),
	}
	b.volumes = volumes.Dir(filepath.Join(r.runtime.volumes, b.name))
	b.stop = sync.OnceFunc(func() { close(b.stopping) })
	b.kill = sync.OnceFunc(func() { close(b.killing) })
	return b
}

func (b *backend) logger() klog.Logger {
	return b.runtime.logger.WithValues("revision", b.revision.Key, "instance", b.name)
}

// run starts the backend and returns after its last process has exited.
func (b *backend) run() {
	defer b.revision.ended(b)
	defer b.runtime.cgroups.Remove(b.name)
	ctx, cancel := b.reading()
	defer cancel()
	b.inputs = objects.Read(ctx, b.runtime.objects, b.revision.Key.Namespace)
	if len(b.plan.volumes) > 0 {
		defer b.removeVolumes()
	}
	if failure := b.prepare(); failure != nil {
		b.failInput(failure)
		return
	}
	if len(b.plan.volumes) > 0 {
		var refreshing sync.WaitGroup
		ended := make(chan struct{})
		refreshing.Go(func() { b.refreshVolumes(ended) })
		defer refreshing.Wait()
		defer close(ended)
	}
	port, err := b.runtime.ports.allocate()
	if err != nil {
		b.fail(&workload.Failure{Resources: true, Reason: reasonRunError, Message: fmt.Sprintf("Failed to allocate a port: %v.", err)})
		return
	}
	defer b.runtime.ports.release(port)
	b.address = net.JoinHostPort(loopback, strconv.Itoa(port))
	sidecars, ok := b.initialize(port)
	if !ok {
		b.terminate(sidecars)
		return
	}
	b.serve(port, sidecars)
}

// readTimeout bounds the time to read the objects that a backend refers to.
const readTimeout = 10 * time.Second

// reading returns a context for reading objects. It is canceled when the backend stops.
func (b *backend) reading() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	go func() {
		select {
		case <-b.stopping:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// prepare reads the objects that the backend refers to, before any process starts.
func (b *backend) prepare() *workload.Failure {
	if err := b.inputs.CheckServiceAccount(b.plan.serviceAccount); err != nil {
		return &workload.Failure{Resources: true, Reason: reasonFailedCreate, Message: fmt.Sprintf(
			"Error looking up service account %s/%s of spec.template.spec.serviceAccountName: %v.", b.revision.Key.Namespace, b.plan.serviceAccount, err)}
	}
	for _, containers := range [][]container{b.plan.init, b.plan.containers} {
		for n := range containers {
			if _, err := b.plan.variables(&containers[n], b.name, "", b.inputs); err != nil {
				return configError(err)
			}
		}
	}
	if len(b.plan.volumes) > 0 {
		if err := b.volumes.Write(b.plan.volumes, b.inputs, b.plan.fields(b.name)); err != nil {
			return configError(err)
		}
	}
	return nil
}

// configError returns a failure that lasts until an object is created or changed.
func configError(err error) *workload.Failure {
	return &workload.Failure{Resources: true, Reason: reasonConfigError, Message: sentence(err)}
}

// sentence returns an error as a sentence for a status.
func sentence(err error) string {
	message := err.Error()
	if !strings.HasSuffix(message, ".") {
		message += "."
	}
	return message
}

// refreshVolumes updates the volumes after changes of their objects until the backend has ended. If an object is missing,
// the files stay unchanged.
func (b *backend) refreshVolumes(ended <-chan struct{}) {
	for {
		select {
		case <-ended:
			return
		case <-b.refresh:
		}
		ctx, cancel := b.reading()
		err := b.volumes.Write(b.plan.volumes, objects.Read(ctx, b.runtime.objects, b.revision.Key.Namespace), b.plan.fields(b.name))
		cancel()
		if err != nil {
			b.logger().Info("Failed to update volumes", "reason", err.Error())
		}
	}
}

func (b *backend) removeVolumes() {
	if err := b.volumes.Remove(); err != nil {
		b.logger().Error(err, "Failed to remove volumes")
	}
}

// failInput reports a failure that lasts until an object is created or changed.
func (b *backend) failInput(failure *workload.Failure) { b.revision.inputFailed(b, failure) }

func (b *backend) fail(failure *workload.Failure) { b.revision.failed(b, failure) }

// running is a container whose process has started.
type running struct {
	*spawn.Process
	checks
}

// start starts a container. If both results are nil, the backend is being stopped.
func (b *backend) start(c *container, port int) (*running, *workload.Failure) {
	select {
	case <-b.stopping:
		return nil, nil
	default:
	}
	started, err := b.launch(c, port)
	if err != nil {
		if errors.Is(err, spawn.ErrNoNamespaces) {
			return nil, &workload.Failure{Resources: true, Reason: reasonConfigError, Message: sentence(fmt.Errorf("volumes of %s: %w", c.path, err))}
		}
		return nil, &workload.Failure{Reason: reasonRunError, Message: fmt.Sprintf("Starting %s failed: %v.", c.Command[0], err)}
	}
	return started, nil
}

func (b *backend) launch(c *container, port int) (*running, error) {
	variables, err := b.plan.variables(c, b.name, strconv.Itoa(port), b.inputs)
	if err != nil {
		return nil, err
	}
	cmd := &spawn.Command{
		Argv: append(variables.expandAll(c.Command), variables.expandAll(c.Args)...),
		Env:  append([]string{b.runtime.owner.variable(b.name)}, variables.list(b.runtime.environment)...),
		Dir:  c.WorkingDir,
		User: c.user,

		Mounts: b.volumes.Mounts(b.plan.volumes, c.VolumeMounts), Staging: b.volumes.Staging(),
	}
	if err := variables.check(); err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr, err = b.runtime.logs.Open(b.revision.Key, b.name, c.logName())
	if err != nil {
		return nil, err
	}
	defer cmd.Stdout.Close()
	defer cmd.Stderr.Close()
	cmd.Cgroup, err = b.runtime.cgroups.Create(b.name, c.Name, c.Resources.Limits)
	if err != nil {
		return nil, err
	}
	if group := cmd.Cgroup; group != nil {
		defer group.Close()
	}
	p, err := b.runtime.spawner.Start(cmd)
	if err != nil && cmd.Cgroup != nil {
		// The server may have the right to create groups, but not to start processes in them.
		cmd.Cgroup = nil
		if p, err = b.runtime.spawner.Start(cmd); err == nil {
			b.logger().Info("Failed to start container in its cgroup; memory and CPU limits are not enforced", "container", c.Name)
		}
	}
	if err != nil {
		return nil, err
	}
	b.logger().V(2).Info("Started process", "container", c.Name, "pid", p.PID(), "port", port)
	return &running{Process: p, checks: checks{
		container: c, port: port, h2c: b.plan.h2c, command: cmd, spawner: b.runtime.spawner,
	}}, nil
}

// initialize runs the init containers and reports whether all succeeded. It returns the native sidecars among them, which
// keep running.
func (b *backend) initialize(port int) (sidecars []*running, ok bool) {
	for n := range b.plan.init {
		c := &b.plan.init[n]
		p, failure := b.start(c, port)
		if failure != nil {
			b.fail(failure)
		}
		if p == nil {
			return sidecars, false
		}
		if c.sidecar {
			sidecars = append(sidecars, p)
			if !b.started(p) {
				return sidecars, false
			}
			continue
		}
		select {
		case <-p.Done():
		case <-b.stopping:
			b.terminate([]*running{p})
			return sidecars, false
		}
		if !p.State().Success() {
			b.fail(b.exit(p))
			return sidecars, false
		}
	}
	return sidecars, true
}

// started waits for the startup probe of a native sidecar and reports whether it passed. A sidecar without one has started.
func (b *backend) started(p *running) bool {
	if p.container.StartupProbe == nil {
		return true
	}
	ctx, cancel := context.WithCancel(context.Background())
	outcome := make(chan error, 1)
	var probes sync.WaitGroup
	defer probes.Wait()
	defer cancel()
	probes.Go(func() {
		startup := newStartupProbe(p.container.StartupProbe, p.check(&p.container.StartupProbe.ProbeHandler))
		startup.watch(ctx, b.runtime.clock, &b.runtime.pacer, func(err error) {
			select {
			case outcome <- err:
			default:
			}
		})
	})
	select {
	case err := <-outcome:
		if err != nil {
			b.fail(probeFailure(p, "startup probe", err))
		}
		return err == nil
	case <-p.Done():
		b.fail(b.exit(p))
	case <-b.stopping:
	}
	return false
}

// probeFailure describes a failed probe of a container.
func probeFailure(p *running, probe string, err error) *workload.Failure {
	return &workload.Failure{Reason: reasonUnhealthy, Message: fmt.Sprintf("%s failed its %s: %v.", subject(p), probe, err)}
}

// serve runs the containers until the backend is stopped, a container or native sidecar exits, or one fails its liveness
// probe. Sidecars are terminated last, in reverse order.
func (b *backend) serve(port int, sidecars []*running) {
	var all []*running
	defer func() { b.terminate(all, reversed(sidecars)...) }()
	ctx, cancel := context.WithCancel(context.Background())
	exits := make(chan *running, len(sidecars)+len(b.plan.containers))
	await := func(p *running) {
		<-p.Done()
		exits <- p
	}
	for _, p := range sidecars {
		go await(p)
	}
	for n := range b.plan.containers {
		p, failure := b.start(&b.plan.containers[n], port)
		if failure != nil {
			b.fail(failure)
		}
		if p == nil {
			cancel()
			return
		}
		all = append(all, p)
		go await(p)
	}
	b.revision.containersStarted(b)
	results := make(chan result)
	var probes sync.WaitGroup
	defer probes.Wait()
	defer cancel()
	unready := 0
	for _, p := range slices.Concat(sidecars, all) {
		if b.probe(ctx, &probes, p, results) {
			unready++
		}
	}
	for {
		select {
		case <-b.stopping:
			return
		case p := <-exits:
			b.fail(b.exit(p))
			return
		case r := <-results:
			switch {
			case r.fatal:
				b.fail(probeFailure(r.container, r.probe, r.err))
				return
			case r.err == nil:
				unready--
			default:
				unready++
				b.logger().Info("Backend is no longer ready", "error", r.err.Error())
			}
			b.revision.setReady(b, unready == 0)
		}
	}
}

// result is a change that a probe has observed.
type result struct {
	container *running
	probe     string
	err       error
	// fatal results stop the backend.
	fatal bool
}

// probe starts the probes of a container and reports whether the backend's readiness depends on it.
func (b *backend) probe(ctx context.Context, probes *sync.WaitGroup, p *running, results chan<- result) bool {
	send := func(r result) {
		select {
		case results <- r:
		case <-ctx.Done():
		}
	}
	watch := func(p *probe, report func(err error)) {
		probes.Go(func() { p.watch(ctx, b.runtime.clock, &b.runtime.pacer, report) })
	}
	c := p.container
	readiness := c.ReadinessProbe
	if readiness == nil && c.serving {
		readiness = defaultReadinessProbe()
	}
	rest := func() {
		if readiness != nil {
			watch(newReadinessProbe(readiness, p.check(&readiness.ProbeHandler)), func(err error) {
				send(result{container: p, probe: "readiness probe", err: err})
			})
		}
		if c.LivenessProbe != nil {
			watch(newLivenessProbe(c.LivenessProbe, p.check(&c.LivenessProbe.ProbeHandler)), func(err error) {
				send(result{container: p, probe: "liveness probe", err: err, fatal: true})
			})
		}
	}
	if c.StartupProbe == nil || c.sidecar {
		// The startup probe of a native sidecar has already passed.
		rest()
		return readiness != nil
	}
	watch(newStartupProbe(c.StartupProbe, p.check(&c.StartupProbe.ProbeHandler)), func(err error) {
		if err == nil {
			rest()
			return
		}
		send(result{container: p, probe: "startup probe", err: err, fatal: true})
	})
	return readiness != nil
}

// exit describes the exit of a container.
func (b *backend) exit(p *running) *workload.Failure {
	code := p.State().ExitCode()
	if status, ok := p.State().Sys().(syscall.WaitStatus); ok && status.Signaled() {
		// Shells and container runtimes use the same code.
		code = 128 + int(status.Signal())
	}
	// The message has the code too, because Configuration and Service repeat the message with reasons of their own.
	why := p.State().String()
	if line := b.runtime.logs.LastLine(b.revision.Key, b.name, p.container.logName()); line != "" {
		why = fmt.Sprintf("%s (exit code %d)", line, code)
	}
	return &workload.Failure{Reason: reasonExitCode + strconv.Itoa(code), Message: subject(p) + " failed with: " + why}
}

// subject names a container in messages. The serving container needs no name.
func subject(p *running) string {
	if p.container.serving {
		return "Container"
	}
	return fmt.Sprintf("Container %q", p.container.Name)
}

// reversed returns processes in reverse order, each as a group of its own.
func reversed(processes []*running) [][]*running {
	var groups [][]*running
	for _, p := range slices.Backward(processes) {
		groups = append(groups, []*running{p})
	}
	return groups
}

// terminate stops groups of processes one after the other: with SIGTERM, and with SIGKILL once the grace period for all of
// them has expired.
func (b *backend) terminate(first []*running, more ...[]*running) {
	grace := b.runtime.clock.NewTimer(b.plan.timeout)
	defer grace.Stop()
	expired := false
	for _, group := range append([][]*running{first}, more...) {
		gone := make(chan struct{})
		go func() {
			for _, p := range group {
				<-p.Done()
			}
			close(gone)
		}()
		if !expired {
			for _, p := range group {
				p.Signal(syscall.SIGTERM)
			}
			select {
			case <-gone:
				continue
			case <-b.killing:
			case <-grace.C():
			}
			expired = true
		}
		for _, p := range group {
			p.Signal(syscall.SIGKILL)
		}
		<-gone
	}
}
