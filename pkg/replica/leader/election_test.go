package leader

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// candidate takes part in the election until it is stopped.
type candidate struct {
	*Election
	// down makes all its requests fail.
	mu      sync.Mutex
	down    bool
	changes []bool
	stop    func()
}

func (c *candidate) setDown(down bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down = down
}

func newCandidate(t *testing.T, tracker clienttesting.ObjectTracker, identity string) *candidate {
	t.Helper()
	c := &candidate{}
	client := &fake.Clientset{}
	client.AddReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.down, nil, errors.New("the server is down")
	})
	client.AddReactor("*", "*", clienttesting.ObjectReaction(tracker))
	var err error
	if c.Election, err = NewElection(client.CoordinationV1(), "system", "leader", identity); err != nil {
		t.Fatal(err)
	}
	c.Subscribe(func(leading bool) { c.changes = append(c.changes, leading) })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx)
	}()
	c.stop = func() { cancel(); <-done }
	return c
}

func after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// Another candidate leads as soon as the leader releases its Lease, and soon after the leader cannot renew it. Without a server no candidate leads.
func TestElection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracker := fake.NewClientset().Tracker()
		a := newCandidate(t, tracker, "a")
		after(time.Second)
		b := newCandidate(t, tracker, "b")
		defer b.stop()
		after(time.Minute)
		if !a.Leading() || b.Leading() {
			t.Fatalf("at first: a leads %t, b leads %t", a.Leading(), b.Leading())
		}
		a.setDown(true)
		after(leaseDuration + 5*retryPeriod)
		if a.Leading() || !b.Leading() {
			t.Fatalf("without its server: a leads %t, b leads %t", a.Leading(), b.Leading())
		}
		a.setDown(false)
		after(time.Minute)
		if a.Leading() || !b.Leading() {
			t.Fatalf("with its server again: a leads %t, b leads %t", a.Leading(), b.Leading())
		}
		b.setDown(true)
		a.setDown(true)
		after(time.Minute)
		if a.Leading() || b.Leading() {
			t.Fatalf("without a server: a leads %t, b leads %t", a.Leading(), b.Leading())
		}
		a.setDown(false)
		after(2 * leaseDuration)
		if !a.Leading() {
			t.Fatal("with a server again: a does not lead")
		}
		b.setDown(false)
		a.stop()
		after(3 * retryPeriod)
		if a.Leading() || !b.Leading() {
			t.Fatalf("at the end: a leads %t, b leads %t", a.Leading(), b.Leading())
		}
		if want := []bool{true, false, true, false}; !slices.Equal(a.changes, want) {
			t.Errorf("a observed %v, want %v", a.changes, want)
		}
	})
}
