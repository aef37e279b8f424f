// Package chaos runs a load on a real server while a schedule of faults disturbs it, and checks the recorded history of the load.
// `make chaos` runs it; without CHAOS_DURATION the tests are skipped.
package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/knative-apiserver/knative-apiserver/test/chaos/history"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// parameters returns the duration and the seed of a run. The test is skipped without a duration; without a seed it is random.
func parameters(t *testing.T) (duration time.Duration, seed uint64) {
	t.Helper()
	text := os.Getenv("CHAOS_DURATION")
	if text == "" {
		t.Skip("CHAOS_DURATION is not set: run make chaos")
	}
	duration, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("CHAOS_DURATION: %v", err)
	}
	if text = os.Getenv("CHAOS_SEED"); text == "" {
		return duration, uint64(rand.Uint32())
	}
	if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
		t.Fatalf("CHAOS_SEED: %v", err)
	}
	return duration, seed
}

// endure runs the load and the faults on a site, and checks the history.
func (s *site) endure(t *testing.T, duration time.Duration, seed uint64, faults []fault) {
	t.Helper()
	byName := map[string]fault{}
	for _, f := range faults {
		byName[f.name] = f
	}
	fmt.Printf("chaos: seed %d, duration %s, faults %s\n", seed, duration, strings.Join(slices.Sorted(maps.Keys(byName)), ", "))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	watching, stopWatches := context.WithCancel(t.Context())
	defer stopWatches()
	var watches sync.WaitGroup
	for i := range 2 {
		w := &watcher{site: s, name: strconv.Itoa(i)}
		watches.Go(func() { w.run(watching) })
	}
	l := &load{site: s, seed: seed, stored: sets.New[string]()}
	l.start(ctx)
	s.awaitRecovery(t, "the start", s.recorder.now())

	began := time.Now()
	// A step lasts at least half a second.
	for _, step := range schedule(seed, faults, int(duration/(500*time.Millisecond))+1) {
		if time.Since(began) > duration || t.Failed() {
			break
		}
		f := history.Fault{Name: step.fault, Begin: s.recorder.now()}
		fmt.Printf("chaos: %7s %s\n", f.Begin.Round(10*time.Millisecond), step)
		byName[step.fault].inject(t, step.duration, step.choice)
		f.End = s.recorder.now()
		if repair := byName[step.fault].repair; repair != nil {
			repair(t)
		}
		s.recorder.record(func(h *history.History) { h.Faults = append(h.Faults, f) })
		s.awaitRecovery(t, step.fault, f.End)
		<-time.After(step.pause)
	}
	stop()
	l.running.Wait()
	s.settle(t, l)
	stopWatches()
	watches.Wait()
	s.report(t, seed, duration)
}

// awaitRecovery waits until each aspect of the service recovered.
func (s *site) awaitRecovery(t *testing.T, after string, since history.Time) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), settled)
	defer cancel()
	if err := harness.Poll(ctx, func() error {
		if !s.recorder.recovered(since) {
			return errors.New("not recovered")
		}
		return nil
	}); err != nil {
		unready, err := s.unready(t.Context())
		t.Errorf("no recovery within %s of %s (since %s); not ready: %v (%v)", settled, after, since, unready, err)
	}
}

// settle waits until all events are delivered, the watches are at the end, and all objects are ready. It records the state at
// that time; the checks decide whether it is complete.
func (s *site) settle(t *testing.T, l *load) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), settled)
	defer cancel()
	var unready []string
	err := harness.Poll(ctx, func() (err error) {
		if unready, err = s.unready(ctx); err == nil && len(unready) > 0 {
			err = fmt.Errorf("not ready: %s", strings.Join(unready, "; "))
		}
		return err
	})
	if err != nil {
		unready = append(unready, err.Error())
	}
	list, err := s.clients().Dynamic.Resource(harness.KindOf("Trigger").GVR()).Namespace(s.objects).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	objects := map[string]uint64{}
	for i := range list.Items {
		namespace, _, version, err := observed(&list.Items[i])
		if err != nil {
			t.Fatal(err)
		}
		objects[namespace+"/"+list.Items[i].GetName()] = version
	}
	s.recorder.record(func(h *history.History) { h.Objects, h.Unready = objects, append(h.Unready, unready...) })
	// Each object is read once more, as the last operation of its history.
	reader := &writer{load: l, client: writers, seen: map[string]uint64{}}
	for _, name := range s.recorder.names() {
		reader.do(name, history.Get)
	}
	s.catchUp(t, l)
	ctx, cancel = context.WithTimeout(t.Context(), settled)
	defer cancel()
	l.count(ctx)
	l.count(ctx)
}

// catchUp waits for deliveries and watches as long as their number decreases: the queue of a Trigger whose subscriber fails may be long. The
// checks report the missing ones.
func (s *site) catchUp(t *testing.T, l *load) {
	t.Helper()
	began, progress, least := time.Now(), time.Now(), math.MaxInt
	for time.Since(progress) < settled {
		pending := math.MaxInt
		if l.collectDeadLetters(t.Context()) == nil {
			pending = s.recorder.pending()
		}
		if pending == 0 {
			break
		}
		if pending < least {
			least, progress = pending, time.Now()
		}
		<-time.After(500 * time.Millisecond)
		l.count(t.Context())
	}
	fmt.Printf("chaos: waited %s for deliveries and watches\n", time.Since(began).Round(time.Second))
}

// report prints the history, and fails the test if it violates a promise.
func (s *site) report(t *testing.T, seed uint64, duration time.Duration) {
	t.Helper()
	h := &s.recorder.history
	accepted := 0
	for i := range h.Posts {
		if h.Posts[i].Accepted {
			accepted++
		}
	}
	fmt.Printf("chaos: %d operations on objects, %d watch events, %d answers to requests, %d events accepted of %d, %d attempts of deliveries, %d faults\n",
		len(h.Operations), len(h.WatchEvents), len(h.Answers), accepted, len(h.Posts), len(h.Attempts), len(h.Faults))
	fmt.Printf("Recovery from the end of a fault (median, maximum)\n%s\n", h.Recovery(aspects))
	if min(len(h.Operations), len(h.WatchEvents), len(h.Answers), accepted, len(h.Attempts)) == 0 {
		t.Error("the load sent no requests")
	}
	violations := h.Check()
	for _, violation := range violations {
		t.Error(violation)
	}
	if t.Failed() {
		t.Errorf("to repeat the schedule: make chaos DURATION=%s SEED=%d", duration, seed)
	}
}
