package leader

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

const (
	// leaseDuration is how long others wait for a leader that does not renew its Lease, renewDeadline how long the
	// leader tries to before it leads no more, retryPeriod how often either does.
	leaseDuration, renewDeadline, retryPeriod = 8 * time.Second, 5 * time.Second, time.Second
)

// Election decides which one of some replicas leads, by a Lease. While nobody can reach the Lease, nobody leads.
type Election struct {
	leases    coordinationclient.LeasesGetter
	namespace string
	config    leaderelection.LeaderElectionConfig
	leads     atomic.Bool
	// leader is the identity of the one that leads, as far as is known.
	leader atomic.Pointer[string]

	// mu orders changes, and guards subscribers.
	mu          sync.Mutex
	subscribers []func(bool)
}

// NewElection returns the election by the Lease of a namespace and name, of a candidate that begins with Run. Identities
// are unique among the candidates, also among those of the same Pod over time.
func NewElection(client coordinationclient.LeasesGetter, namespace, name, identity string) (*Election, error) {
	e := &Election{leases: client, namespace: namespace}
	e.config = leaderelection.LeaderElectionConfig{
		Name: name,
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: namespace, Name: name},
			Client:     client,
			LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
		},
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
		// The Lease is given up at the end, so that others lead at once.
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: e.gain,
			OnStoppedLeading: e.lose,
			OnNewLeader:      func(identity string) { e.leader.Store(&identity) },
		},
	}
	// What is wrong with the configuration is told here, not by Run.
	if _, err := leaderelection.NewLeaderElector(e.config); err != nil {
		return nil, fmt.Errorf("create elector for Lease %s/%s: %w", namespace, name, err)
	}
	return e, nil
}

// Leading tells whether this replica leads.
func (e *Election) Leading() bool { return e.leads.Load() }

// Leader returns the identity of the one that was seen to lead last, or nothing.
func (e *Election) Leader() string {
	if leader := e.leader.Load(); leader != nil {
		return *leader
	}
	return ""
}

// Subscribe has fn called with each later change of Leading, one call at a time. It must not block.
func (e *Election) Subscribe(fn func(leading bool)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.subscribers = append(e.subscribers, fn)
}

// Run takes part in the election, again and again, until ctx ends and the Lease is given up.
func (e *Election) Run(ctx context.Context) {
	for ctx.Err() == nil {
		elector, err := leaderelection.NewLeaderElector(e.config)
		if err != nil {
			// NewElection has tried.
			klog.FromContext(ctx).Error(err, "Failed to run leader election", "lease", e.config.Name)
			return
		}
		// It returns when leading is lost, which does not end the candidacy.
		e.attempt(ctx, elector)
	}
}

// attempt waits to lead, and leads until that is lost.
func (e *Election) attempt(ctx context.Context, elector *leaderelection.LeaderElector) {
	// From the end on nobody is to be told anymore that this replica leads, also before the Lease is given up.
	stop := context.AfterFunc(ctx, e.lose)
	defer stop()
	elector.Run(ctx)
}

// gain notes that this replica leads, unless that is over already.
func (e *Election) gain(ctx context.Context) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if ctx.Err() == nil {
		e.set(true)
	}
}

// lose notes that this replica does not lead.
func (e *Election) lose() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.set(false)
}

// set tells of a change. mu is held.
func (e *Election) set(leading bool) {
	if e.leads.Swap(leading) == leading {
		return
	}
	for _, fn := range e.subscribers {
		fn(leading)
	}
}
