package reconciler

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// deferral bounds the time for which a status update may be deferred, maxDeferral the time if more than few objects of the
	// namespace have a deferred one.
	deferral    = 500 * time.Millisecond
	maxDeferral = 30 * time.Second
	few         = 10
)

// deferrals are the keys with a deferred status update, by namespace and name, with the time of the first deferral. Most reasons
// for an Unknown readiness are short-lived, and each write costs a disk write on each etcd member. If many objects of a
// namespace are becoming ready, their updates wait until few are left.
type deferrals struct {
	mu    sync.Mutex
	since map[string]map[string]time.Time
}

func newDeferrals() *deferrals { return &deferrals{since: map[string]map[string]time.Time{}} }

// allow reports whether the status update of a key may be deferred, that is, has not been deferred for long enough.
func (d *deferrals) allow(key types.NamespacedName) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	since, found := d.since[key.Namespace][key.Name]
	return !found || time.Since(since) < d.limit(key.Namespace)
}

// limit returns how long status updates in a namespace may be deferred. mu is held.
func (d *deferrals) limit(namespace string) time.Duration {
	if len(d.since[namespace]) > few {
		return maxDeferral
	}
	return deferral
}

// note records whether the status update of a key was deferred. If it was, note returns the time after which to reconcile the
// key again; otherwise it returns the keys whose updates are due because few are left.
func (d *deferrals) note(key types.NamespacedName, deferred bool) (delay time.Duration, due []types.NamespacedName) {
	d.mu.Lock()
	defer d.mu.Unlock()
	others := d.since[key.Namespace]
	since, found := others[key.Name]
	switch {
	case deferred:
		if others == nil {
			others = map[string]time.Time{}
			d.since[key.Namespace] = others
		}
		if !found {
			since = time.Now()
			others[key.Name] = since
		}
		return d.limit(key.Namespace) - time.Since(since), nil
	case found:
		delete(others, key.Name)
		switch len(others) {
		case 0:
			delete(d.since, key.Namespace)
		case few:
			for name := range others {
				due = append(due, types.NamespacedName{Namespace: key.Namespace, Name: name})
			}
		}
	}
	return 0, due
}
