package app

import (
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// Reasons of the Events about settings and trust bundles.
const (
	// reasonInvalid means that a ConfigMap is invalid and its last valid settings stay in effect.
	reasonInvalid = "InvalidSettings"
	// reasonValid means that a ConfigMap is valid after it was not.
	reasonValid = "ValidSettings"
	// reasonUnused means that keys of a ConfigMap have no effect.
	reasonUnused = "UnusedSettings"
	// reasonInvalidTrust means that a ConfigMap with certificates to trust is ignored, reasonValidTrust that it no longer is.
	reasonInvalidTrust, reasonValidTrust = "InvalidTrustBundle", "ValidTrustBundle"
	// reasonHTTPSNotServed means that a setting asks for HTTPS, but the server has no listener for it.
	reasonHTTPSNotServed = "HTTPSNotServed"
)

// faults records Events about invalid settings, keys without effect, trust bundles that are ignored, and HTTPS that is not served. All
// replicas find the same faults, and the leader records them.
type faults struct {
	// namespace is the namespace of the ConfigMaps.
	namespace string

	// mu guards the fields below.
	mu       sync.Mutex
	recorder record.EventRecorder
	leading  bool
	// present are the Events about invalid settings, unused the Events about keys without effect, by the name of the ConfigMap.
	present, unused map[string]finding
	// trust are the Events about trust bundles that are ignored, by the name of the ConfigMap.
	trust map[string]finding
	// unserved are the Events about HTTPS without a listener, by the name of the ConfigMap.
	unserved map[string]finding
}

// finding is the content of an Event about a ConfigMap.
type finding struct {
	uid                   types.UID
	kind, reason, message string
}

func newFaults(namespace string) *faults {
	return &faults{namespace: namespace, present: map[string]finding{}, unused: map[string]finding{}, trust: map[string]finding{}, unserved: map[string]finding{}}
}

// Fault records the error of a ConfigMap, or nil if it is valid.
func (f *faults) Fault(configMap string, uid types.UID, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		delete(f.present, configMap)
		f.record(configMap, finding{uid, corev1.EventTypeNormal, reasonValid, "The settings are in force"})
		return
	}
	f.present[configMap] = finding{uid, corev1.EventTypeWarning, reasonInvalid, err.Error()}
	f.record(configMap, f.present[configMap])
}

// TrustBundle records the error of a ConfigMap with certificates to trust, or nil if it is not ignored.
func (f *faults) TrustBundle(configMap string, uid types.UID, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		delete(f.trust, configMap)
		f.record(configMap, finding{uid, corev1.EventTypeNormal, reasonValidTrust, "The certificates are trusted, unless they were deleted"})
		return
	}
	f.trust[configMap] = finding{uid, corev1.EventTypeWarning, reasonInvalidTrust, "The certificates are not trusted: " + err.Error()}
	f.record(configMap, f.trust[configMap])
}

// Unused records the keys of a ConfigMap that have no effect, which may be none.
func (f *faults) Unused(configMap string, uid types.UID, keys []settings.UnusedKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(keys) == 0 {
		delete(f.unused, configMap)
		return
	}
	f.unused[configMap] = finding{uid, corev1.EventTypeWarning, reasonUnused, "Keys have no effect: " + settings.JoinUnused(keys)}
	f.record(configMap, f.unused[configMap])
}

// HTTPSNotServed records and logs that a setting of a ConfigMap asks for HTTPS that is not served. An empty message means that it does not.
func (f *faults) HTTPSNotServed(configMap, message string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before, found := f.unserved[configMap]
	switch {
	case message == "":
		delete(f.unserved, configMap)
	case !found || before.message != message:
		klog.InfoS("Cannot serve HTTPS", "configMap", configMap, "reason", message)
		f.unserved[configMap] = finding{kind: corev1.EventTypeWarning, reason: reasonHTTPSNotServed, message: message}
		f.record(configMap, f.unserved[configMap])
	}
}

// recordBy sets the recorder of Events, which is used while this replica leads.
func (f *faults) recordBy(recorder record.EventRecorder) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.recorder = recorder
}

// lead sets whether this replica leads. A new leader records all current findings.
func (f *faults) lead(leading bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leading = leading
	for _, findings := range []map[string]finding{f.present, f.unused, f.trust, f.unserved} {
		for _, configMap := range slices.Sorted(maps.Keys(findings)) {
			f.record(configMap, findings[configMap])
		}
	}
}

// record records an Event if this replica leads. mu is held.
func (f *faults) record(configMap string, of finding) {
	if !f.leading || f.recorder == nil {
		return
	}
	about := &corev1.ObjectReference{APIVersion: "v1", Kind: "ConfigMap", Namespace: f.namespace, Name: configMap, UID: of.uid}
	f.recorder.Event(about, of.kind, of.reason, of.message)
}
