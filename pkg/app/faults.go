package app

import (
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// SystemNamespace is that of the ConfigMaps that hold settings, unless another is said.
const SystemNamespace = "knative-system"

// Reasons of the Events about settings.
const (
	// ReasonInvalid means that a ConfigMap has a fault and keeps the settings that it last had.
	ReasonInvalid = "InvalidSettings"
	// ReasonValid means that a ConfigMap has no fault after it had one.
	ReasonValid = "ValidSettings"
	// ReasonUnused means that keys of a ConfigMap have no effect.
	ReasonUnused = "UnusedSettings"
)

// faults makes Events about faults of settings and keys without effect. All replicas see the same, and the one that leads
// records it.
type faults struct {
	// namespace is that of the ConfigMaps.
	namespace string

	// mu guards what follows.
	mu       sync.Mutex
	recorder record.EventRecorder
	leading  bool
	// present are the Events about the present faults, unused those about keys without effect, by the name of the ConfigMap.
	present, unused map[string]finding
}

// finding is the content of an Event about a ConfigMap.
type finding struct {
	uid                   types.UID
	kind, reason, message string
}

func newFaults(namespace string) *faults {
	return &faults{namespace: namespace, present: map[string]finding{}, unused: map[string]finding{}}
}

// Fault records the fault of a ConfigMap, or nil once it has none.
func (f *faults) Fault(configMap string, uid types.UID, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		delete(f.present, configMap)
		f.record(configMap, finding{uid, corev1.EventTypeNormal, ReasonValid, "The settings are in force"})
		return
	}
	f.present[configMap] = finding{uid, corev1.EventTypeWarning, ReasonInvalid, err.Error()}
	f.record(configMap, f.present[configMap])
}

// Unused records the keys of a ConfigMap that have no effect, or none once all have one.
func (f *faults) Unused(configMap string, uid types.UID, keys []settings.UnusedKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(keys) == 0 {
		delete(f.unused, configMap)
		return
	}
	f.unused[configMap] = finding{uid, corev1.EventTypeWarning, ReasonUnused, "Keys have no effect: " + settings.JoinUnused(keys)}
	f.record(configMap, f.unused[configMap])
}

// recordBy sets the recorder of Events. It is used while this replica leads.
func (f *faults) recordBy(recorder record.EventRecorder) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.recorder = recorder
}

// lead sets whether this replica leads. Findings from before any replica led are recorded then.
func (f *faults) lead(leading bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leading = leading
	for _, findings := range []map[string]finding{f.present, f.unused} {
		for _, configMap := range slices.Sorted(maps.Keys(findings)) {
			f.record(configMap, findings[configMap])
		}
	}
}

// record makes an Event, if that is up to this replica. mu is held.
func (f *faults) record(configMap string, of finding) {
	if !f.leading || f.recorder == nil {
		return
	}
	about := &corev1.ObjectReference{APIVersion: "v1", Kind: "ConfigMap", Namespace: f.namespace, Name: configMap, UID: of.uid}
	f.recorder.Event(about, of.kind, of.reason, of.message)
}
