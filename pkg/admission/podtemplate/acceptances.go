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
	// verdictTTL is how long an acceptance counts. It bounds how late a change is noticed of what the host
	// judges by and we do not watch: limit ranges, and what is behind its webhooks.
	verdictTTL = 10 * time.Second
	// verdictCount bounds the memory for verdicts, to less than a megabyte.
	verdictCount = 4096
)

// verdicts remembers which Pods the host accepted a moment ago, so that many objects with one template cost
// one question. Refusals are asked about again: somebody is at work on them.
type verdicts struct {
	accepted *utilcache.LRUExpireCache
	// epoch moves whenever a namespace, a webhook configuration or an admission policy changes. Acceptances
	// of an earlier epoch do not count.
	epoch atomic.Uint64
	// asking has the questions that wait for the host's answer.
	asking singleflight.Group
}

func newVerdicts() *verdicts {
	return &verdicts{accepted: utilcache.NewLRUExpireCache(verdictCount)}
}

// verdictKey is what a verdict holds for.
type verdictKey struct {
	epoch  uint64
	digest [sha256.Size]byte
}

// key returns the key of a Pod as of now. The Pod's name is not part of it: it is of our making.
func (v *verdicts) key(pod *corev1.Pod) (verdictKey, error) {
	epoch := v.epoch.Load()
	anonymous := *pod
	anonymous.Name = ""
	data, err := anonymous.Marshal()
	if err != nil {
		return verdictKey{}, fmt.Errorf("encoding the Pod of the template: %w", err)
	}
	return verdictKey{epoch: epoch, digest: sha256.Sum256(data)}, nil
}

// accepts asks the host, unless it accepted such a Pod a moment ago. Of many that ask the same at once one does; what it
// gets counts for all if it is an acceptance, otherwise each asks for itself.
func (v *verdicts) accepts(key verdictKey, ask func() error) error {
	own := func() error {
		if v.has(key) {
			return nil
		}
		err := ask()
		if err == nil {
			v.add(key)
		}
		return err
	}
	first := false
	_, err, _ := v.asking.Do(fmt.Sprintf("%d/%x", key.epoch, key.digest), func() (any, error) {
		first = true
		return nil, own()
	})
	if err != nil && !first {
		err = own()
	}
	return err
}

func (v *verdicts) has(key verdictKey) bool {
	_, ok := v.accepted.Get(key)
	return ok
}

func (v *verdicts) add(key verdictKey) { v.accepted.Add(key, nil, verdictTTL) }

// watch starts a new epoch at every change of what the host judges Pods by.
func (v *verdicts) watch(host informers.SharedInformerFactory) error {
	admission := host.Admissionregistration().V1()
	for _, informer := range []cache.SharedIndexInformer{
		host.Core().V1().Namespaces().Informer(),
		admission.MutatingWebhookConfigurations().Informer(),
		admission.ValidatingWebhookConfigurations().Informer(),
		admission.MutatingAdmissionPolicies().Informer(),
		admission.MutatingAdmissionPolicyBindings().Informer(),
		admission.ValidatingAdmissionPolicies().Informer(),
		admission.ValidatingAdmissionPolicyBindings().Informer(),
	} {
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { v.epoch.Add(1) },
			UpdateFunc: func(old, updated any) {
				if resourceVersion(old) != resourceVersion(updated) {
					v.epoch.Add(1)
				}
			},
			DeleteFunc: func(any) { v.epoch.Add(1) },
		})
		if err != nil {
			return fmt.Errorf("watching what the host judges Pods by: %w", err)
		}
	}
	return nil
}

// resourceVersion tells changes from resyncs.
func resourceVersion(obj any) string {
	accessor, err := meta.Accessor(obj)
	if err != nil {
		return ""
	}
	return accessor.GetResourceVersion()
}
