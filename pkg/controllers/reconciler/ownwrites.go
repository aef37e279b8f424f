package reconciler

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// maxLag is the time for which a write is remembered at least; at most, it is remembered twice as long. Informers lag behind by
// milliseconds; a write that is forgotten too early costs a conflict.
const maxLag = 30 * time.Second

// ownWrites are the resource versions that recent writes of statuses returned, by the UID of the object. If an object is reconciled
// again before the informer has delivered the written one, another write would only cause a conflict.
type ownWrites struct {
	mu sync.Mutex
	// recent are the writes since began, older the writes of the period before.
	recent, older map[types.UID]string
	began         time.Time
}

func newOwnWrites() *ownWrites { return &ownWrites{recent: map[types.UID]string{}} }

// note records that a write of an object returned a resource version.
func (w *ownWrites) note(uid types.UID, version string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forget()
	w.recent[uid] = version
}

// forget forgets the writes that are too old. mu is held.
func (w *ownWrites) forget() {
	if now := time.Now(); now.Sub(w.began) > maxLag {
		w.recent, w.older, w.began = map[types.UID]string{}, w.recent, now
	}
}

// outdates reports whether a listed object is older than the last written one. The informer delivers the written object, and with it the
// object is reconciled again.
func (w *ownWrites) outdates(listed Object) bool {
	w.mu.Lock()
	w.forget()
	version, found := w.recent[listed.GetUID()]
	if !found {
		version, found = w.older[listed.GetUID()]
	}
	w.mu.Unlock()
	if !found {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(listed.GetResourceVersion(), version)
	return err == nil && order < 0
}
