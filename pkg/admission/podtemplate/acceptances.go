package podtemplate

import (
	"crypto/sha256"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

const (
	// acceptanceTTL is the lifetime of an acceptance. It bounds the delay of changes that are not watched: limit ranges,
	// and the configuration behind the host's webhooks.
	acceptanceTTL = 10 * time.Second
	// maxAcceptances bounds the memory for acceptances to less than a megabyte.
	maxAcceptances = 4096
)

// acceptances caches the Pods that the host accepted recently, so that many objects with templates that it does not distinguish need one dry run.
// Rejections are not cached, because the user is probably fixing the cause.
type acceptances struct {
	accepted *utilcache.LRUExpireCache
	readers  readers
	// epoch increases whenever a namespace, a webhook configuration or an admission policy changes. Acceptances of an
	// earlier epoch are ignored.
	epoch atomic.Uint64
	// inFlight deduplicates concurrent dry runs.
	inFlight singleflight.Group
}

func newAcceptances() *acceptances {
	return &acceptances{accepted: utilcache.NewLRUExpireCache(maxAcceptances)}
}

// acceptanceKey identifies Pods within an epoch that the host does not distinguish.
type acceptanceKey struct {
	epoch  uint64
	digest [sha256.Size]byte
}

// key returns the current key of a Pod, from which it may remove what the host does not judge.
func (a *acceptances) key(pod *corev1.Pod) (acceptanceKey, error) {
	epoch := a.epoch.Load()
	if !a.readers.exist(epoch) {
		removeValues(pod)
	}
	data, err := pod.Marshal()
	if err != nil {
		return acceptanceKey{}, fmt.Errorf("encode Pod of the template: %w", err)
	}
	return acceptanceKey{epoch: epoch, digest: sha256.Sum256(data)}, nil
}

// accepts calls dryRun unless a Pod with the key was accepted recently. Concurrent calls with the same key share one dry run if it
// accepts the Pod. Otherwise each call runs its own.
func (a *acceptances) accepts(key acceptanceKey, dryRun func() error) error {
	own := func() error {
		if a.has(key) {
			return nil
		}
		err := dryRun()
		if err == nil {
			a.add(key)
		}
		return err
	}
	first := false
	_, err, _ := a.inFlight.Do(fmt.Sprintf("%d/%x", key.epoch, key.digest), func() (any, error) {
		first = true
		return nil, own()
	})
	if err != nil && !first {
		err = own()
	}
	return err
}

func (a *acceptances) has(key acceptanceKey) bool {
	_, ok := a.accepted.Get(key)
	return ok
}

func (a *acceptances) add(key acceptanceKey) { a.accepted.Add(key, nil, acceptanceTTL) }

// watch starts a new epoch when an object changes that influences whether the host accepts a Pod.
func (a *acceptances) watch(host informers.SharedInformerFactory) error {
	a.readers.watch(host)
	for _, informer := range append([]cache.SharedIndexInformer{host.Core().V1().Namespaces().Informer()}, a.readers.informers...) {
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { a.epoch.Add(1) },
			UpdateFunc: func(old, updated any) {
				if resourceVersion(old) != resourceVersion(updated) {
					a.epoch.Add(1)
				}
			},
			DeleteFunc: func(any) { a.epoch.Add(1) },
		})
		if err != nil {
			return fmt.Errorf("watch admission configuration of the host: %w", err)
		}
	}
	return nil
}

// resourceVersion distinguishes changes from resyncs.
func resourceVersion(obj any) string {
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return ""
	}
	return accessor.GetResourceVersion()
}
