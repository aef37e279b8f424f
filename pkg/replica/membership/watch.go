package membership

import (
	"context"
	"maps"
	"math"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
)

// watch follows the Leases of all members until ctx is canceled.
func (m *Membership) watch(ctx context.Context) {
	selector := labels.Set{componentLabel: component}
	if m.options.Installation != "" && m.options.Includes == nil {
		selector[installationLabel] = m.options.Installation
	}
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = selector.String()
			return m.client().List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = selector.String()
			return m.client().Watch(ctx, o)
		},
	}
	logger := klog.FromContext(ctx)
	cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(source, m.options.Client), &coordinationv1.Lease{}, sightings{m, selector.AsSelector()},
		cache.ReflectorOptions{
			Logger: &logger, Name: "members", Clock: m.options.Clock,
			// Changes during an outage of the server are observed soon after it.
			Backoff: &wait.Backoff{Duration: time.Second / 2, Cap: renewEvery, Factor: 2, Jitter: .5, Steps: math.MaxInt32},
		}).RunWithContext(ctx)
}

// see calls do with the current time and updates the view. A member whose Lease expired is removed, if renewals of the own Lease were observed.
func (m *Membership) see(do func(now time.Time)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.options.Clock.Now()
	do(now)
	trusted := m.joined && now.Sub(m.confirmed.at) <= staleAfter
	for _, other := range m.others {
		other.gone = other.gone || trusted && now.Sub(other.at) > other.duration
	}
	for _, view := range m.views {
		seen := make([]Member, 0, len(m.others)+1)
		for _, other := range m.others {
			if !other.gone && view.selects(other.installation) {
				seen = append(seen, other.member)
			}
		}
		if m.joined && view.selects(m.options.Installation) {
			seen = append(seen, m.options.Self)
		}
		view.Set(NewSet(m.options.Self.Name, seen...))
	}
}

func (s selection) selects(installation string) bool {
	return s.includes == nil || s.includes(installation)
}

// sightings receives the Leases.
type sightings struct {
	*Membership
	selector labels.Selector
}

var _ cache.ReflectorStore = sightings{}

// Add implements cache.ReflectorStore.
func (s sightings) Add(obj any) error {
	s.see(func(now time.Time) { s.changed(obj, now) })
	return nil
}

// Update implements cache.ReflectorStore.
func (s sightings) Update(obj any) error { return s.Add(obj) }

// Delete implements cache.ReflectorStore.
func (s sightings) Delete(obj any) error {
	s.see(func(time.Time) {
		if lease, ok := obj.(*coordinationv1.Lease); ok {
			delete(s.others, memberOf(lease))
		}
	})
	return nil
}

// Replace implements cache.ReflectorStore.
func (s sightings) Replace(leases []any, _ string) error {
	s.see(func(now time.Time) {
		left := maps.Clone(s.others)
		for _, obj := range leases {
			s.changed(obj, now)
			if lease, ok := obj.(*coordinationv1.Lease); ok {
				delete(left, memberOf(lease))
			}
		}
		for name := range left {
			delete(s.others, name)
		}
		select {
		case <-s.synced:
		default:
			close(s.synced)
		}
	})
	return nil
}

// Resync implements cache.ReflectorStore.
func (s sightings) Resync() error { return nil }

func memberOf(lease *coordinationv1.Lease) string { return strings.TrimPrefix(lease.Name, leasePrefix) }

// changed records a Lease that may have been renewed. mu is held.
func (s sightings) changed(obj any, now time.Time) {
	lease, ok := obj.(*coordinationv1.Lease)
	if !ok || !s.selector.Matches(labels.Set(lease.Labels)) {
		return
	}
	name := memberOf(lease)
	installation := lease.Labels[installationLabel]
	if s.options.Includes != nil && !s.options.Includes(installation) {
		// A Pod may have been in another installation before.
		delete(s.others, name)
		return
	}
	seen := sighting{
		member: Member{Name: name, Address: ptr.Deref(lease.Spec.HolderIdentity, "")}, installation: installation, renewal: lease.Spec.RenewTime.DeepCopy(), at: now,
		duration: time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, int32(leaseDuration/time.Second))) * time.Second,
		seen:     metav1.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion}, owned: len(lease.OwnerReferences) > 0,
	}
	if name == s.options.Self.Name {
		s.renewed(seen)
		return
	}
	before := s.others[name]
	switch {
	case seen.member.Address == "":
		delete(s.others, name)
	case before == nil || !before.renewal.Equal(seen.renewal):
		s.others[name] = &seen
	default:
		before.seen, before.owned = seen.seen, seen.owned
	}
}

// renewed records a renewal of the own Lease. After a gap, the Leases of other members count as renewed now. mu is held.
func (s sightings) renewed(own sighting) {
	if own.renewal.Equal(s.confirmed.renewal) || own.member.Address != s.options.Self.Address {
		return
	}
	if own.at.Sub(s.confirmed.at) > staleAfter {
		for _, other := range s.others {
			other.at = own.at
		}
	}
	s.confirmed = own
}
