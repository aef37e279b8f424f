package lifecycle

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// journal records the calls of fake modules, in order.
type journal struct {
	mu      sync.Mutex
	entries []string
}

func (j *journal) add(entry string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries = append(j.entries, entry)
}

func (j *journal) expect(t *testing.T, want ...string) {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	if !slices.Equal(j.entries, want) {
		t.Errorf("modules did %q, want %q", j.entries, want)
	}
	j.entries = nil
}

// fakeModule is a Module that takes stopsAfter to stop.
type fakeModule struct {
	*journal
	name                        string
	startErr, readyErr, stopErr error
	readyAfter, stopsAfter      time.Duration
	ignoresStopTimeout          bool
	fail                        func(error)
}

func (m *fakeModule) Name() string { return m.name }

func (m *fakeModule) Start(_ context.Context, fail func(error)) error {
	m.add("start " + m.name)
	m.fail = fail
	return m.startErr
}

func (m *fakeModule) Ready(ctx context.Context) error {
	select {
	case <-time.After(m.readyAfter):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return m.readyErr
}

func (m *fakeModule) Stop(ctx context.Context) error {
	select {
	case <-time.After(m.stopsAfter):
	case <-ctx.Done():
		if !m.ignoresStopTimeout {
			return ctx.Err()
		}
		<-time.After(m.stopsAfter)
	}
	m.add("stop " + m.name)
	return m.stopErr
}

// retiringModule is a fakeModule that is a Retirer.
type retiringModule struct{ *fakeModule }

func (m retiringModule) Retire() { m.add("retire " + m.name) }

// Modules start in order, are reported until they are ready, retire first, and stop in reverse order: the modules of a stage concurrently.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		ctx, end := context.WithCancel(t.Context())
		defer end()
		r := NewRunner(time.Minute, end)
		if err := r.Ready(); err != nil {
			t.Errorf("Ready returns %v before Start", err)
		}
		started := make(chan error, 1)
		go func() {
			started <- r.Start(ctx,
				Stage{&fakeModule{journal: j, name: "informers"}},
				Stage{retiringModule{&fakeModule{journal: j, name: "serving", readyAfter: time.Second}}, &fakeModule{journal: j, name: "eventing", readyAfter: time.Second}},
				// gateway takes longer to stop than broker, which starts after it.
				Stage{&fakeModule{journal: j, name: "gateway", stopsAfter: 20 * time.Second}, &fakeModule{journal: j, name: "broker", stopsAfter: 30 * time.Second}},
			)
		}()
		synctest.Wait()
		for _, want := range []string{"not ready: serving, eventing, gateway, broker", "not ready: eventing, gateway, broker"} {
			if err := r.Ready(); err == nil || err.Error() != want {
				t.Errorf("Ready returns %v, want %s", err, want)
			}
			time.Sleep(time.Second) //nolint:forbidigo // The clock of the bubble.
			synctest.Wait()
		}
		if err := r.Ready(); err != nil {
			t.Errorf("Ready returns %v once all are", err)
		}
		if err := <-started; err != nil {
			t.Errorf("Start returns %v", err)
		}
		j.expect(t, "start informers", "start serving", "start eventing", "start gateway", "start broker")

		r.Retire()
		synctest.Wait()
		j.expect(t, "retire serving")
		stopping := time.Now()
		end()
		if err := r.Wait(); err != nil {
			t.Errorf("Wait returns %v", err)
		}
		if took := time.Since(stopping); took != 30*time.Second {
			t.Errorf("stopping took %s, want the 30s of the slowest module", took)
		}
		j.mu.Lock()
		// The modules of a stage without duration stop in any order.
		slices.Sort(j.entries[2:4])
		j.mu.Unlock()
		j.expect(t, "stop gateway", "stop broker", "stop eventing", "stop serving", "stop informers")
	})
}

// A module that does not start or become ready stops those before it, and no module after it starts.
func TestFailedStart(t *testing.T) {
	broken, stuck := errors.New("broken"), errors.New("stuck")
	for name, test := range map[string]struct {
		module  fakeModule
		journal []string
		message string
	}{
		"does not start": {
			fakeModule{name: "serving", startErr: broken},
			[]string{"start informers", "start settings", "start serving", "stop settings", "stop informers"}, "start serving: broken",
		},
		"does not become ready": {
			fakeModule{name: "serving", readyErr: broken},
			[]string{"start informers", "start settings", "start serving", "stop serving", "stop settings", "stop informers"}, "wait for serving to become ready: broken",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := &journal{}
				test.module.journal = j
				r := NewRunner(time.Minute, func() {})
				err := r.Start(t.Context(),
					Stage{&fakeModule{journal: j, name: "informers"}},
					Stage{&fakeModule{journal: j, name: "settings", stopErr: stuck}},
					Stage{&test.module, &fakeModule{journal: j, name: "eventing"}},
				)
				if !errors.Is(err, broken) || !errors.Is(err, stuck) || !strings.Contains(err.Error(), test.message) {
					t.Errorf("Start returns %v, want %s, and the error of stopping settings", err, test.message)
				}
				j.expect(t, test.journal...)
				if err := r.Ready(); err == nil || err.Error() != "not ready: serving, eventing" {
					t.Errorf("Ready returns %v", err)
				}
				if err := r.Wait(); err != nil {
					t.Errorf("Wait returns %v, which Start returned", err)
				}
			})
		})
	}
}

// A shutdown that begins during the start stops what has started.
func TestInterruptedStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		ctx, end := context.WithCancel(t.Context())
		r := NewRunner(time.Minute, end)
		r.Retire()
		time.AfterFunc(time.Second, end)
		err := r.Start(ctx,
			Stage{retiringModule{&fakeModule{journal: j, name: "serving", readyAfter: time.Minute}}}, Stage{&fakeModule{journal: j, name: "gateway"}})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Start returns %v", err)
		}
		synctest.Wait()
		j.expect(t, "start serving", "retire serving", "stop serving")
	})
}

// Modules that exceed the stop timeout, whether they observe it or not, are reported and do not delay others; all errors are joined.
func TestStopTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		unclean := errors.New("unclean")
		ctx, end := context.WithCancel(t.Context())
		r := NewRunner(10*time.Second, end)
		err := r.Start(ctx,
			Stage{&fakeModule{journal: j, name: "informers", stopErr: unclean}},
			Stage{
				&fakeModule{journal: j, name: "gateway", stopsAfter: time.Minute},
				&fakeModule{journal: j, name: "broker", stopsAfter: time.Minute, ignoresStopTimeout: true},
			},
		)
		if err != nil {
			t.Fatal(err)
		}
		j.expect(t, "start informers", "start gateway", "start broker")
		end()
		before := time.Now()
		err = r.Wait()
		if took := time.Since(before); took != 10*time.Second {
			t.Errorf("stopping took %s, want 10s", took)
		}
		if !errors.Is(err, unclean) {
			t.Errorf("Wait returns %v, want %v too", err, unclean)
		}
		for _, want := range []string{"stop gateway: still running after 10s", "stop broker: still running after 10s", "stop informers: unclean"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Wait returns %v, want %s", err, want)
			}
		}
		j.expect(t, "stop informers")
		// The bubble ends with all of its goroutines.
		time.Sleep(2 * time.Minute) //nolint:forbidigo // The clock of the bubble.
	})
}

// A module that fails later stops all modules, and Wait returns the error.
func TestFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journal{}
		ctx, end := context.WithCancel(t.Context())
		defer end()
		r := NewRunner(time.Minute, end)
		gateway := &fakeModule{journal: j, name: "gateway"}
		if err := r.Start(ctx, Stage{&fakeModule{journal: j, name: "serving"}}, Stage{gateway}); err != nil {
			t.Fatal(err)
		}
		broken := errors.New("broken")
		gateway.fail(broken)
		if err := r.Wait(); !errors.Is(err, broken) || err.Error() != "gateway: broken" {
			t.Errorf("Wait returns %v", err)
		}
		j.expect(t, "start serving", "start gateway", "stop gateway", "stop serving")
	})
}

// taskModule is a Module of Tasks.
type taskModule struct {
	Tasks
	task func(context.Context) error
}

func (*taskModule) Name() string { return "tasks" }

func (m *taskModule) Start(ctx context.Context, fail func(error)) error {
	m.Begin(ctx, fail)
	m.Go(m.task)
	return nil
}

// A task that fails makes the module fail; an error after Stop began does not.
func TestTasks(t *testing.T) {
	broken := errors.New("broken")
	for name, test := range map[string]struct {
		fails bool
		want  error
	}{
		"a task fails":         {fails: true, want: broken},
		"all end when stopped": {},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, end := context.WithCancel(t.Context())
			defer end()
			m := &taskModule{task: func(ctx context.Context) error {
				if !test.fails {
					<-ctx.Done()
				}
				return broken
			}}
			r := NewRunner(time.Minute, end)
			if err := r.Start(ctx, Stage{m}); err != nil && !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			if !test.fails {
				end()
			}
			if err := r.Wait(); !errors.Is(err, test.want) {
				t.Errorf("Wait returns %v, want %v", err, test.want)
			}
			if err := m.Stop(t.Context()); err != nil {
				t.Errorf("Stop returns %v", err)
			}
			m.Go(func(context.Context) error { t.Error("a task runs after Stop"); return nil })
			m.running.Wait()
		})
	}
}

// Init runs its function with the lifetime of the module. Canceling the start interrupts it, and an error ends it.
func TestInit(t *testing.T) {
	broken := errors.New("broken")
	for name, test := range map[string]struct {
		interrupted bool
		err, want   error
	}{
		"succeeds":       {},
		"fails":          {err: broken, want: broken},
		"is interrupted": {interrupted: true, want: context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			m := &Tasks{}
			m.Begin(ctx, func(err error) { t.Errorf("the module failed: %v", err) })
			var lifetime context.Context
			err := m.Init(ctx, func(ctx context.Context) error {
				lifetime = ctx
				if test.interrupted {
					interrupt()
					<-ctx.Done()
				}
				return test.err
			})
			if !errors.Is(err, test.want) {
				t.Errorf("Init returns %v, want %v", err, test.want)
			}
			interrupt()
			if ended := lifetime.Err() != nil; ended != (test.want != nil) {
				t.Errorf("the context of the tasks has ended: %t", ended)
			}
			m.end()
			if lifetime.Err() == nil {
				t.Error("the context of the tasks does not end with Stop")
			}
		})
	}
}
