package settings

import (
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// Reporter receives the state of the ConfigMaps, once for each change. Its methods must not block. name is the name of the
// ConfigMap, or the path of an unreadable file or directory. Settings in files have no UID.
type Reporter interface {
	// Fault receives the error of a ConfigMap whose last valid settings remain in effect, and nil once it is valid.
	Fault(name string, uid types.UID, err error)
	// Unused receives the keys of a ConfigMap that have no effect, and none once all of them have one.
	Unused(name string, uid types.UID, keys []UnusedKey)
}

// reports sends each change to the log and a Reporter.
type reports struct {
	to Reporter
	// faults and unused are the last reports, by the name of the ConfigMap or the path.
	faults, unused map[string]string
}

func newReports(to Reporter) *reports {
	return &reports{to: to, faults: map[string]string{}, unused: map[string]string{}}
}

// fault reports an error, or nil, if it differs from the last report.
func (r *reports) fault(name string, uid types.UID, err error) {
	before, faulty := r.faults[name]
	switch {
	case err == nil && faulty:
		klog.InfoS("Settings are valid", "configMap", name)
		delete(r.faults, name)
		r.to.Fault(name, uid, nil)
	case err != nil && before != err.Error():
		klog.ErrorS(err, "Failed to read settings; keeping last known good settings", "configMap", name)
		r.faults[name] = err.Error()
		r.to.Fault(name, uid, err)
	}
}

// unusedKeys reports the keys without effect if they differ from the last report.
func (r *reports) unusedKeys(name string, uid types.UID, keys []UnusedKey) {
	now := JoinUnused(keys)
	if r.unused[name] == now {
		return
	}
	if now == "" {
		delete(r.unused, name)
	} else {
		klog.InfoS("Keys of a ConfigMap have no effect", "configMap", name, "keys", now)
		r.unused[name] = now
	}
	r.to.Unused(name, uid, keys)
}
