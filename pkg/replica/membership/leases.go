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
	// renewEvery is the interval at which a member renews its Lease, leaseDuration the time that it stays a member without a renewal.
	renewEvery, leaseDuration = 2 * time.Second, 6 * time.Second
	// staleAfter is the maximum age of the last observed renewal of the own Lease at which this replica treats expired Leases as lost
	// members. It is shorter than the remaining time of a Lease that was renewed just before, so that a failure of the server removes no
	// member.
	staleAfter = 3 * time.Second
	// orphanedAfter is the time for which a Lease without an owner may stay unrenewed. Leases of Pods are deleted with their owner.
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
	// Includes selects the installations whose members are followed; nil selects Installation. ViewOf restricts them further.
	Includes func(installation string) bool
	// Announcer writes the own Lease; nil writes it with Client.
	Announcer Announcer
	// Renewed, if set, is called after each renewal of the own Lease with the time when it began.
	Renewed func(begun time.Time)
	Clock   clock.WithTicker
}

// Announcer writes the Lease of a replica.
type Announcer interface {
	// Renew creates or renews the Lease.
	Renew(ctx context.Context) error
	// Release deletes the Lease, permanently.
	Release(ctx context.Context) error
}

// Membership follows the replicas of this server and announces this one, by a Lease that each replica renews. A replica that releases its
// Lease stops being a member immediately; a replica that does not renew its Lease stops when the Lease expires. Only the arrival times of
// changes at this replica count, so that clocks need not agree.
//
// While this replica does not observe renewals of its own Lease, because the server is down or the network is partitioned, it keeps all
// members. Other replicas may observe its expiry meanwhile: then two replicas own the same keys for some time. The work of an owner must
// be safe to do twice, or needs an ownership.Standing.
type Membership struct {
	options Options
	// views are not changed after Run was called.
	views []selection
	// synced is closed once all existing Leases have been observed.
	synced chan struct{}
	// announcer writes the own Lease. cleans is true if this replica also deletes Leases of others.
	announcer Announcer
	cleans    bool

	// mu guards the fields below.
	mu     sync.Mutex
	joined bool
	others map[string]*sighting
	// confirmed is the latest observed renewal of the own Lease.
	confirmed sighting
}

// selection is the view of the members of some installations.
type selection struct {
	*View
	// includes selects the installations; nil selects all.
	includes func(installation string) bool
}

// sighting is an observed Lease.
type sighting struct {
	member       Member
	installation string
	// renewal is the time of renewal by the member's clock. It distinguishes renewals only.
	renewal  *metav1.MicroTime
	duration time.Duration
	at       time.Time
	// gone is true if the Lease expired. A renewal resets it.
	gone bool
	// seen is the observed state of the Lease, and owned is true if it has an owner, with which it is deleted.
	seen  metav1.Preconditions
	owned bool
}

// New returns the membership of a replica that is not a member before Join.
func New(o Options) *Membership {
	announcer := o.Announcer
	if announcer == nil {
		announcer = &ownLease{client: o.Client, clock: o.Clock, namespace: o.Namespace, installation: o.Installation, holder: o.Self, podUID: o.PodUID}
	}
	return &Membership{
		options: o, views: []selection{{View: NewView(NewSet(o.Self.Name))}}, synced: make(chan struct{}),
		announcer: announcer, cleans: o.Announcer == nil, others: map[string]*sighting{},
	}
}

// View returns the view of all members. This replica is a member from Join to Release.
func (m *Membership) View() *View { return m.views[0].View }

// ViewOf returns the view of those members whose installations a function selects. It must be called before Run.
func (m *Membership) ViewOf(includes func(installation string) bool) *View {
	view := NewView(NewSet(m.options.Self.Name))
	m.views = append(m.views, selection{view, includes})
	return view
}

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

// Synced returns once all existing members have been observed, or with an error if ctx is canceled first. Run must have been called.
func (m *Membership) Synced(ctx context.Context) error {
	select {
	case <-m.synced:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("list Leases of replicas in namespace %s: %w", m.options.Namespace, context.Cause(ctx))
	}
}

// Join makes this replica a member, to which the others forward requests from then on. Call it when this replica can answer them. It
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

// Release releases the own Lease permanently: this replica is no longer a member.
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
	begun := m.options.Clock.Now()
	err := m.announcer.Renew(ctx)
	if err == nil && m.options.Renewed != nil {
		m.options.Renewed(begun)
	}
	return err
}

// UpToDate reports whether this replica has observed the latest renewal of another one's Lease, so that its views are correct about it. It
// reads the Lease from the server.
func (m *Membership) UpToDate(ctx context.Context, name string) (bool, error) {
	lease, err := m.client().Get(ctx, leasePrefix+name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("read Lease of replica %s: %w", name, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	other := m.others[name]
	return other != nil && other.renewal.Equal(lease.Spec.RenewTime), nil
}
