package membership

import (
	"context"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
)

// ownLease is the Lease of a replica, which writes it itself. It implements Announcer.
type ownLease struct {
	client       coordinationclient.LeasesGetter
	clock        clock.Clock
	namespace    string
	installation string
	holder       Member
	// podUID is the UID of the owner; empty if unknown.
	podUID types.UID

	// mu is held while the Lease is written. It guards written, the latest version, and released.
	mu       sync.Mutex
	written  *coordinationv1.Lease
	released bool
}

var _ Announcer = (*ownLease)(nil)

func (l *ownLease) leases() coordinationclient.LeaseInterface { return l.client.Leases(l.namespace) }

func (l *ownLease) name() string { return leasePrefix + l.holder.Name }

// Renew implements Announcer. It has no effect after Release.
func (l *ownLease) Renew(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.released {
		return nil
	}
	return l.write(ctx)
}

// Release implements Announcer.
func (l *ownLease) Release(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.released = true
	return l.remove(ctx)
}

// remove deletes the Lease if it was written.
func (l *ownLease) remove(ctx context.Context) error {
	if l.written == nil {
		return nil
	}
	err := l.leases().Delete(ctx, l.name(), *metav1.NewPreconditionDeleteOptions(string(l.written.UID)))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("release Lease %s/%s: %w", l.namespace, l.name(), err)
	}
	return nil
}

// write creates or renews the Lease. After an error, the next call reads it.
func (l *ownLease) write(ctx context.Context) error {
	written, err := l.put(ctx)
	if err != nil {
		l.written = nil
		return fmt.Errorf("write Lease %s/%s: %w", l.namespace, l.name(), err)
	}
	l.written = written
	return nil
}

func (l *ownLease) put(ctx context.Context) (*coordinationv1.Lease, error) {
	existing := l.written
	if existing == nil {
		found, err := l.leases().Get(ctx, l.name(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return l.leases().Create(ctx, l.renewed(&coordinationv1.Lease{}), metav1.CreateOptions{})
		}
		if err != nil {
			return nil, err
		}
		existing = found
	}
	return l.leases().Update(ctx, l.renewed(existing.DeepCopy()), metav1.UpdateOptions{})
}

// renewed turns a Lease into the Lease of the holder, renewed now.
func (l *ownLease) renewed(lease *coordinationv1.Lease) *coordinationv1.Lease {
	lease.Namespace, lease.Name = l.namespace, l.name()
	lease.Labels = map[string]string{componentLabel: component}
	if l.installation != "" {
		lease.Labels[installationLabel] = l.installation
	}
	if l.podUID != "" {
		lease.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: corev1.SchemeGroupVersion.String(), Kind: "Pod", Name: l.holder.Name, UID: l.podUID,
		}}
	}
	now := metav1.NewMicroTime(l.clock.Now())
	lease.Spec.RenewTime = &now
	if ptr.Deref(lease.Spec.HolderIdentity, "") != l.holder.Address || lease.Spec.AcquireTime == nil {
		lease.Spec.AcquireTime = &now
	}
	lease.Spec.HolderIdentity = ptr.To(l.holder.Address)
	lease.Spec.LeaseDurationSeconds = ptr.To(int32(leaseDuration / time.Second))
	return lease
}
