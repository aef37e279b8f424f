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
	// leaseDuration is the time that other candidates wait for a leader that does not renew its Lease, renewDeadline the
	// time that the leader tries to renew before it stops leading, retryPeriod the interval of attempts.
	leaseDuration, renewDeadline, retryPeriod = 8 * time.Second, 5 * time.Second, time.Second
)

// Election elects one of several replicas by a Lease. While no replica can reach the Lease, there is no leader.
type Election struct {
	leases    coordinationclient.LeasesGetter
	namespace string
	config    leaderelection.LeaderElectionConfig
	leads     atomic.Bool
	// leader is the identity of the leader seen last.
	leader atomic.Pointer[string]

	// mu orders changes, and guards subscribers.
	mu          sync.Mutex
	subscribers []func(bool)
}

// NewElection returns an election by the Lease with a namespace and name. The candidacy starts with Run. Each process has
// its own identity, including successive processes of one Pod.
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
		// Another replica leads at once after a shutdown.
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: e.gain,
			OnStoppedLeading: e.lose,
			OnNewLeader:      func(identity string) { e.leader.Store(&identity) },
		},
	}
	// Run cannot return the error of an invalid configuration.
	if _, err := leaderelection.NewLeaderElector(e.config); err != nil {
		return nil, fmt.Errorf("create elector for Lease %s/%s: %w", namespace, name, err)
	}
	return e, nil
}

// Leading reports whether this replica leads.
func (e *Election) Leading() bool { return e.leads.Load() }

// Leader returns the identity of the leader seen last, or "".
func (e *Election) Leader() string {
	if leader := e.leader.Load(); leader != nil {
		return *leader
	}
	return ""
}

// Subscribe registers fn to be called with each later change of Leading, one call at a time. It must not block.
func (e *Election) Subscribe(fn func(leading bool)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.subscribers = append(e.subscribers, fn)
}

// Run takes part in the election until ctx is canceled, and releases the Lease then.
func (e *Election) Run(ctx context.Context) {
	for ctx.Err() == nil {
		elector, err := leaderelection.NewLeaderElector(e.config)
		if err != nil {
			// NewElection has validated the configuration.
			klog.FromContext(ctx).Error(err, "Failed to run leader election", "lease", e.config.Name)
			return
		}
		// It returns after a loss of leadership, which does not end the candidacy.
		e.attempt(ctx, elector)
	}
}

// attempt waits for leadership and keeps it until it is lost.
func (e *Election) attempt(ctx context.Context, elector *leaderelection.LeaderElector) {
	// Leading reports false before the Lease is released.
	stop := context.AfterFunc(ctx, e.lose)
	defer stop()
	elector.Run(ctx)
}

// gain records that this replica leads, unless ctx is canceled already.
func (e *Election) gain(ctx context.Context) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if ctx.Err() == nil {
		e.set(true)
	}
}

// lose records that this replica does not lead.
func (e *Election) lose() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.set(false)
}

// set calls the subscribers with a change. mu is held.
func (e *Election) set(leading bool) {
	if e.leads.Swap(leading) == leading {
		return
	}
	for _, fn := range e.subscribers {
		fn(leading)
	}
}
