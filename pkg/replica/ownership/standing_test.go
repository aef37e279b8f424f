package ownership

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestStanding covers the lapse of a standing, and checks that each lapse ends a term and is announced once.
func TestStanding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStanding()
		var lapses atomic.Int64
		s.Subscribe(func() { lapses.Add(1) })
		expect := func(when string, number int, valid bool, announced int64) {
			t.Helper()
			synctest.Wait()
			if n, v := s.Current(); n != number || v != valid || lapses.Load() != announced {
				t.Errorf("%s: term %d, valid %t, %d lapses; want %d, %t, %d", when, n, v, lapses.Load(), number, valid, announced)
			}
		}
		expect("at first", 0, false, 0)
		s.Confirm(time.Now().Add(-Validity))
		expect("confirmed too late", 0, false, 0)
		s.Confirm(time.Now())
		expect("confirmed", 1, true, 0)
		<-time.After(3 * time.Second)
		s.Confirm(time.Now().Add(-time.Second))
		s.Confirm(time.Now().Add(-2 * time.Second))
		<-time.After(4*time.Second - time.Nanosecond)
		expect("before the last validity ends", 1, true, 0)
		<-time.After(time.Nanosecond)
		expect("lapsed", 1, false, 1)
		s.Confirm(time.Now())
		expect("confirmed again", 2, true, 1)
		<-time.After(time.Minute)
		expect("lapsed again", 2, false, 2)
	})
	var never *Standing
	if _, valid := never.Current(); !valid {
		t.Error("a nil Standing is not valid")
	}
}

// A process that was paused announces the lapse before it begins a new term.
func TestStandingAfterPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStanding()
		terms := make(chan int, 10)
		s.Subscribe(func() { n, _ := s.Current(); terms <- n })
		s.Confirm(time.Now())
		s.timer.Stop()
		<-time.After(time.Minute)
		s.Confirm(time.Now())
		<-time.After(time.Minute)
		synctest.Wait()
		if first, second := <-terms, <-terms; first != 1 || second != 2 || len(terms) > 0 {
			t.Errorf("lapses of terms %d, %d and %d more", first, second, len(terms))
		}
	})
}

// TestStandingRun checks that other replicas are queried once the Lease was not renewed for some time, and again after failures.
func TestStandingRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewStanding()
		began := time.Now()
		var asked []string
		failures := make(chan error, 2)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.Run(ctx, func(context.Context) error {
				asked = append(asked, time.Since(began).String())
				select {
				case err := <-failures:
					return err
				default:
					return nil
				}
			})
		}()
		<-time.After(10 * time.Second)
		for range 5 {
			s.Confirm(time.Now())
			<-time.After(2 * time.Second)
		}
		// The last renewal was at 18s.
		failures <- errors.New("unreachable")
		failures <- errors.New("unreachable")
		<-time.After(6 * time.Second)
		if _, valid := s.Current(); !valid {
			t.Error("lapsed although others confirmed")
		}
		cancel()
		<-done
		if diff := cmp.Diff([]string{"21s", "21.5s", "22s", "25s"}, asked); diff != "" {
			t.Errorf("asked (-want +got):\n%s", diff)
		}
	})
}
