package membership

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// renewEvery is the interval at which a member renews its Lease, leaseDuration how long it stays a member without.
	renewEvery, leaseDuration = 2 * time.Second, 6 * time.Second
	// staleAfter is how long after the last seen renewal of its own Lease this replica judges the Leases of others. It is shorter than
	// the remaining time of a Lease that was renewed just before, so that a failure of the server removes no member.
	staleAfter = 3 * time.Second
	// orphanedAfter is how long a Lease without an owner may stay unrenewed. Leases of Pods are deleted with their owner.
	orphanedAfter = 10 * time.Minute
	// leasePrefix precedes the name of the Pod in the name of its Lease.
	leasePrefix = "knative-apiserver-member-"

	componentLabel, component = "app.kubernetes.io/component", "member"
	installationLabel         = "app.kubernetes.io/instance"
)

// Options configure a Membership. Client, Namespace, Self and Clock are required.
type Options struct {
	// Client accesses the Leases, in a namespace of the host cluster.
	Client    coordinationclient.LeasesGetter
	Namespace string
	// Installation distinguishes installations in one namespace; empty for the only one.
	Installation string
	Self         Member
	// PodUID is the UID of the Pod named Self.Name, which owns its Lease; empty if unknown.
	PodUID types.UID
	// Includes selects the installations whose members are followed; nil selects Installation.
	Includes func(installation string) bool
	// Announcer writes the own Lease; nil writes it with Client.
	Announcer Announcer
	Clock     clock.WithTicker
}

// Announcer writes the Lease of a replica.
type Announcer interface {
	// Renew creates or renews the Lease.
	Renew(ctx context.Context) error
	// Release deletes the Lease, permanently.
	Release(ctx context.Context) error
}

// Membership follows the replicas of this server and announces this one, by a Lease that each replica renews. A replica that
// releases its Lease stops being a member at once; one that does not renew its Lease, when the Lease expires. Only the times
// at which changes arrive here count, so that clocks need not agree.
//
// While this replica does not see its own Lease renewed, because the server is down or the network is partitioned, it keeps
// all members. Other replicas may see it expire meanwhile: then two replicas own the same keys for a while. The work of
// an owner must be safe to do twice.
type Membership struct {
	options Options
	view    *View
	// synced is closed once all existing Leases have been seen.
	synced chan struct{}
	// announcer writes the own Lease. cleans is true if this replica also deletes Leases of others.
	announcer Announcer
	cleans    bool

	// mu guards the fields below.
	mu     sync.Mutex
	joined bool
	others map[string]*sighting
	// confirmed is the latest seen renewal of the own Lease.
	confirmed sighting
}

// sighting is a Lease as it was seen.
type sighting struct {
	member Member
	// renewal is the time of renewal by the member's clock. It distinguishes renewals only.
	renewal  *metav1.MicroTime
	duration time.Duration
	at       time.Time
	// gone is true if the Lease expired. A renewal makes it valid again.
	gone bool
	// seen is the state of the Lease, and owned is true if it has an owner, with which it is deleted.
	seen  metav1.Preconditions
	owned bool
}

// New returns the membership of a replica that is no member before Join.
func New(o Options) *Membership {
	announcer := o.Announcer
	if announcer == nil {
		announcer = &ownLease{client: o.Client, clock: o.Clock, namespace: o.Namespace, installation: o.Installation, holder: o.Self, podUID: o.PodUID}
	}
	return &Membership{
		options: o, view: NewView(NewSet(o.Self.Name)), synced: make(chan struct{}),
		announcer: announcer, cleans: o.Announcer == nil, others: map[string]*sighting{},
	}
}

// View returns the view of all members. This replica is a member from Join to Release.
func (m *Membership) View() *View { return m.view }

// Run follows the members, and renews the own Lease after Join, until ctx is canceled.
func (m *Membership) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { m.watch(ctx) })
	running.Go(func() { m.keep(ctx) })
	checks := m.options.Clock.NewTicker(time.Second)
	defer checks.Stop()
	for ctx.Err() == nil {
		select {
		case <-checks.C():
			m.see(func(time.Time) {})
		case <-ctx.Done():
		}
	}
	running.Wait()
}

// Synced returns once all existing members have been seen, or with an error if ctx is canceled before. Run must have
// been called.
func (m *Membership) Synced(ctx context.Context) error {
	select {
	case <-m.synced:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("list Leases of replicas in namespace %s: %w", m.options.Namespace, context.Cause(ctx))
	}
}

// Join makes this replica a member, to which the others forward requests from then on: call it when they can be answered. It
// retries until ctx is canceled. Run must have been called.
func (m *Membership) Join(ctx context.Context) error {
	if err := m.Synced(ctx); err != nil {
		return err
	}
	for {
		err := m.renew(ctx)
		if err == nil {
			break
		}
		klog.FromContext(ctx).Info("Failed to create Lease; retrying", "reason", err.Error())
		select {
		case <-m.options.Clock.After(renewEvery / 2):
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		}
	}
	m.see(func(time.Time) { m.joined = true })
	return nil
}

// Release releases the own Lease, permanently: this replica is no member any more.
func (m *Membership) Release(ctx context.Context) error {
	m.see(func(time.Time) { m.joined = false })
	return m.announcer.Release(ctx)
}

func (m *Membership) client() coordinationclient.LeaseInterface {
	return m.options.Client.Leases(m.options.Namespace)
}

// keep renews the own Lease after Join.
func (m *Membership) keep(ctx context.Context) {
	renewals := m.options.Clock.NewTicker(renewEvery)
	defer renewals.Stop()
	for {
		select {
		case <-renewals.C():
		case <-ctx.Done():
			return
		}
		m.mu.Lock()
		joined := m.joined
		m.mu.Unlock()
		if !joined {
			continue
		}
		if err := m.renew(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Info("Failed to renew Lease; keeping last known membership", "reason", err.Error())
		}
		if m.cleans {
			m.deleteOrphaned(ctx)
		}
	}
}

// deleteOrphaned deletes the Leases of lost members that have no owner. A member that renews its Lease meanwhile keeps it.
func (m *Membership) deleteOrphaned(ctx context.Context) {
	orphaned := map[string]metav1.Preconditions{}
	m.see(func(now time.Time) {
		for name, other := range m.others {
			if other.gone && !other.owned && now.Sub(other.at) > orphanedAfter {
				orphaned[leasePrefix+name] = other.seen
			}
		}
	})
	for name, seen := range orphaned {
		err := m.client().Delete(ctx, name, metav1.DeleteOptions{Preconditions: &seen})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			klog.FromContext(ctx).Error(err, "Failed to delete orphaned Lease", "lease", name)
			return
		}
	}
}

// renew writes the own Lease.
func (m *Membership) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, renewEvery)
	defer cancel()
	return m.announcer.Renew(ctx)
}
