package components

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
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

// faults makes Events of what is wrong with settings. What was reported before there is a recorder waits for it.
type faults struct {
	// namespace is that of the ConfigMaps.
	namespace string

	mu       sync.Mutex
	recorder record.EventRecorder // guarded by mu
	waiting  []func()             // guarded by mu
}

// report takes a fault of a ConfigMap, or nil once there is none.
func (f *faults) report(configMap string, fault error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	about := &corev1.ObjectReference{APIVersion: "v1", Kind: "ConfigMap", Namespace: f.namespace, Name: configMap}
	event := func() {
		if fault == nil {
			f.recorder.Event(about, corev1.EventTypeNormal, ReasonValid, "The settings are in force")
			return
		}
		f.recorder.Event(about, corev1.EventTypeWarning, ReasonInvalid, fault.Error())
	}
	if f.recorder == nil {
		f.waiting = append(f.waiting, event)
		return
	}
	event()
}

// recordBy has all faults, those before too, recorded as Events.
func (f *faults) recordBy(recorder record.EventRecorder) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.recorder = recorder
	for _, event := range f.waiting {
		event()
	}
	f.waiting = nil
}
