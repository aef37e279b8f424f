package streams

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/ownership"
)

const (
	// HandoverElement begins the paths by which a replica notifies another one of a stream that it released. Manager.Handover
	// serves them.
	HandoverElement = "handover"
	// parallel is the number of streams that are acquired or released at a time.
	parallel = 16
	// recheckAfter is the delay after which the log of gained streams is read again: a former owner that learned of the
	// change late may have appended until then.
	recheckAfter = 15 * time.Second
)

// move hands streams over after a change of owners, as ownership.Table.Follow requires.
func (m *Manager) move(before, after ownership.Owners[eventing.Key]) (moved bool) {
	if after.Equal(before) {
		return m.reassign()
	}
	gained := after.Gained(before)
	if m.options.Gained != nil {
		m.options.Gained(gained)
	}
	moved = m.reassign()
	m.recheck(gained)
	return moved
}

// reassign acquires the streams that this replica owns and releases all others. It returns false if it could not acquire all.
func (m *Manager) reassign() bool {
	var failed atomic.Bool
	var group errgroup.Group
	group.SetLimit(parallel)
	m.catalog.each(func(st *stream) bool {
		group.Go(func() error {
			if err := m.reassignOne(st); err != nil {
				failed.Store(true)
				klog.FromContext(m.ctx).Info("Failed to acquire a stream; retrying", "stream", st.key.String(), "reason", err.Error())
			}
			return nil
		})
		return m.ctx.Err() == nil
	})
	group.Wait() //nolint:errcheck // it returns no error
	return !failed.Load()
}

func (m *Manager) reassignOne(st *stream) error {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case st.obsolete || st.spec == nil:
		return nil
	case m.options.Owners.Owns(st.key):
		return m.acquire(m.ctx, st)
	default:
		m.release(st)
		return nil
	}
}

// acquire makes the broker serve a stream with all its consumers, if this replica owns it, and opens its gate. It returns
// errBehind while a consumer is missing. The stream's mu is held.
func (m *Manager) acquire(ctx context.Context, st *stream) error {
	owners := m.options.Owners.Current()
	if st.served || !owners.Owns(st.key) {
		return nil
	}
	if st.spec == nil {
		return errNotReady(st.key)
	}
	if err := m.known(ctx, st.key, owners); err != nil {
		return err
	}
	if err := m.subscriptions.require(ctx, st, owners); err != nil {
		return err
	}
	consumers := make([]eventing.Consumer, 0, len(st.consumers))
	for _, c := range st.consumers {
		if c.StreamUID == st.spec.UID {
			consumers = append(consumers, c)
		}
	}
	served, err := m.options.Broker.AcquireStream(ctx, *st.spec, consumers)
	if !served {
		return err
	}
	if err != nil {
		// Their own status reports it.
		klog.FromContext(ctx).V(2).Info("Failed to set some consumers", "stream", st.key.String(), "reason", err.Error())
	}
	st.served = true
	st.gate.set(true)
	return nil
}

// release closes the gate of a stream, makes the broker release it and notifies the owner. The stream's mu is held.
func (m *Manager) release(st *stream) {
	if !st.served {
		return
	}
	st.gate.set(false)
	m.options.Broker.ReleaseStream(st.key)
	st.served = false
	m.handover.Released(st.key)
}

// recheck delivers, after a delay, the events that the logs of gained streams have by then, and deletes the events of streams
// that were removed while they had no owner.
func (m *Manager) recheck(gained func(eventing.Key) bool) {
	time.AfterFunc(recheckAfter, func() {
		if m.ctx.Err() != nil {
			return
		}
		if gained != nil {
			m.refresh(gained)
		}
		if err := m.options.Broker.Prune(m.ctx); err != nil && m.ctx.Err() == nil {
			klog.FromContext(m.ctx).Info("Deleting the events of removed objects later", "reason", err.Error())
			m.recheck(nil)
		}
	})
}

// refresh delivers the events in the logs of some streams.
func (m *Manager) refresh(which func(eventing.Key) bool) {
	m.catalog.each(func(st *stream) bool {
		if !which(st.key) {
			return true
		}
		if err := m.options.Broker.Refresh(m.ctx, st.key); err != nil && m.ctx.Err() == nil {
			klog.FromContext(m.ctx).Info("Failed to look for events in the log", "stream", st.key.String(), "reason", err.Error())
		}
		return m.ctx.Err() == nil
	})
}

// Handover returns the handler of notifications that other replicas released a stream, below HandoverElement.
func (m *Manager) Handover() http.Handler {
	return ownership.HandoverHandler(parseKey, m.options.Broker.Refresh)
}

// handoverPath returns the path of a notification.
func handoverPath(key eventing.Key) string {
	path := "/" + HandoverElement + "/" + string(key.Kind) + "/" + key.Namespace + "/" + key.Name
	if key.Partition > 0 {
		path += "/" + strconv.Itoa(key.Partition)
	}
	return path
}

// parseKey is the inverse of handoverPath, without the element.
func parseKey(path string) (eventing.Key, bool) {
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	partition := 0
	if len(parts) == 4 {
		n, err := strconv.Atoi(parts[3])
		if err != nil || n < 1 {
			return eventing.Key{}, false
		}
		parts, partition = parts[:3], n
	}
	if len(parts) != 3 {
		return eventing.Key{}, false
	}
	return eventing.Key{Kind: eventing.Kind(parts[0]), Namespace: parts[1], Name: parts[2], Partition: partition}, true
}
