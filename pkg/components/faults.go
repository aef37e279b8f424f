package components

import (
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
)

// SystemNamespace is that of the ConfigMaps that hold settings, unless another is said.
const SystemNamespace = "knative-system"

// Reasons of the Events about settings.
const (
	// ReasonInvalid tells that a ConfigMap has a fault and keeps the settings that it last had.
	ReasonInvalid = "InvalidSettings"
	// ReasonValid tells that a fault is gone.
	ReasonValid = "ValidSettings"
)

// faults makes Events of what is wrong with settings. All replicas see the same, and the one that leads records it.
type faults struct {
	// namespace is that of the ConfigMaps.
	namespace string

	// mu guards what follows.
	mu       sync.Mutex
	recorder record.EventRecorder
	leading  bool
	// present are the faults that there are, by the names of their ConfigMaps.
	present map[string]fault
}

// fault is what is wrong with a ConfigMap of a UID.
type fault struct {
	uid types.UID
	err error
}

// report takes a fault of a ConfigMap, or nil once there is none.
func (f *faults) report(configMap string, uid types.UID, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		delete(f.present, configMap)
	} else {
		if f.present == nil {
			f.present = map[string]fault{}
		}
		f.present[configMap] = fault{uid, err}
	}
	f.record(configMap, fault{uid, err})
}

// recordBy has faults recorded as Events while this replica leads.
func (f *faults) recordBy(recorder record.EventRecorder) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.recorder = recorder
}

// lead tells whether this replica leads. The faults that there are then may be from before anybody led.
func (f *faults) lead(leading bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leading = leading
	for _, configMap := range slices.Sorted(maps.Keys(f.present)) {
		f.record(configMap, f.present[configMap])
	}
}

// record makes an Event, if that is up to this replica. mu is held.
func (f *faults) record(configMap string, is fault) {
	if !f.leading || f.recorder == nil {
		return
	}
	about := &corev1.ObjectReference{APIVersion: "v1", Kind: "ConfigMap", Namespace: f.namespace, Name: configMap, UID: is.uid}
	if is.err == nil {
		f.recorder.Event(about, corev1.EventTypeNormal, ReasonValid, "The settings are in force")
		return
	}
	f.recorder.Event(about, corev1.EventTypeWarning, ReasonInvalid, is.err.Error())
}
