package ownership

import (
	"context"
	"net/http"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/replica/peer"
)

const (
	// moveRetry is the time after which Follow moves keys again that could not be moved.
	moveRetry = time.Second
	// notifications bounds the number of attempts to notify a new owner, notifyTimeout the time of each and the pause after it.
	notifications, notifyTimeout = 5, 2 * time.Second
)

// Follow calls move with the owners before and after each change of membership, one call at a time, until stop is closed.
// Changes during a call are combined. move returns false if keys remain to be moved: it is called again after a second, with
// the current owners for both arguments. moved is the result of an earlier call with the initial owners.
func (t *Table[K]) Follow(before Owners[K], moved bool, stop <-chan struct{}, move func(before, after Owners[K]) bool) {
	for {
		var retry <-chan time.Time
		if !moved {
			retry = time.After(moveRetry)
		}
		changed := t.Changed()
		if before.Equal(t.Current()) {
			select {
			case <-changed:
			case <-retry:
			case <-stop:
				return
			}
		}
		after := t.Current()
		moved = move(before, after)
		before = after
	}
}

// Handover notifies the new owner of each key that this replica released: that replica may have read the key's state
// before this one wrote it last.
type Handover[K any] struct {
	ctx       context.Context
	cancel    context.CancelFunc
	table     *Table[K]
	transport http.RoundTripper
	path      func(K) string
	running   sync.WaitGroup
}

// NewHandover returns a Handover over the connections to other replicas, or without effect if transport is nil. path
// returns the path of the notification for a key. ctx carries the logger; Close ends it.
func NewHandover[K any](ctx context.Context, table *Table[K], transport http.RoundTripper, path func(K) string) *Handover[K] {
	h := &Handover[K]{table: table, transport: transport, path: path}
	h.ctx, h.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return h
}

// Released notifies the owner of a key in the background. It retries for some seconds: without a notification, the owner reads the key's state later.
func (h *Handover[K]) Released(key K) {
	if h.transport == nil {
		return
	}
	h.running.Go(func() {
		for range notifications {
			err := h.notify(key)
			if err == nil {
				return
			}
			klog.FromContext(h.ctx).V(2).Info("Failed to notify the new owner", "key", h.table.place(key).Name, "reason", err.Error())
			select {
			case <-time.After(notifyTimeout):
			case <-h.ctx.Done():
				return
			}
		}
	})
}

func (h *Handover[K]) notify(key K) error {
	owner, self := h.table.Current().Owner(key)
	if self {
		return nil
	}
	ctx, cancel := context.WithTimeout(h.ctx, notifyTimeout)
	defer cancel()
	return peer.Call{Method: http.MethodPost, Path: h.path(key)}.Do(ctx, h.transport, owner)
}

// Close waits for the notifications, for as long as one attempt may take, and cancels the rest.
func (h *Handover[K]) Close() {
	timer := time.AfterFunc(notifyTimeout, h.cancel)
	h.running.Wait()
	timer.Stop()
	h.cancel()
}

// HandoverHandler serves the notifications of other replicas. parse returns the key of a path, and received handles the key.
func HandoverHandler[K any](parse func(path string) (K, bool), received func(context.Context, K) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key, ok := parse(r.URL.Path)
		if !ok {
			http.NotFound(w, r)
			return
		}
		if err := received(r.Context(), key); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
}
