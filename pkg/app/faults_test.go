package app

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"

	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// recorded notes Events with the UID of what they are about.
type recorded struct {
	record.EventRecorder
	events []string
}

func (r *recorded) Event(about runtime.Object, kind, reason, message string) {
	of, _ := about.(*corev1.ObjectReference)
	r.events = append(r.events, fmt.Sprintf("%s %s %s/%s/%s: %s", kind, reason, of.Namespace, of.Name, of.UID, message))
}

// Faults and keys without effect become Events of the replica that leads, those too that were found before it did.
func TestFaults(t *testing.T) {
	recorder := &recorded{}
	f := newFaults("system")
	expect := func(what string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, recorder.events); diff != "" {
			t.Errorf("events %s (-want +got):\n%s", what, diff)
		}
		recorder.events = nil
	}
	f.Fault("config-gc", "u1", errors.New("not a number"))
	f.Fault("config-domain", "u2", errors.New("not a name"))
	f.Fault("config-domain", "u2", nil)
	f.Unused("config-gc", "u1", []settings.UnusedKey{{Key: "activator-capacity", Reason: "there is no activator"}})
	f.Unused("config-domain", "u2", []settings.UnusedKey{{Key: "key", Reason: "it is misspelt"}})
	f.Unused("config-domain", "u2", nil)
	f.recordBy(recorder)
	f.Fault("config-network", "u3", errors.New("not a duration"))
	expect("of a replica that follows")
	f.lead(true)
	expect("once it leads", "Warning InvalidSettings system/config-gc/u1: not a number", "Warning InvalidSettings system/config-network/u3: not a duration",
		"Warning UnusedSettings system/config-gc/u1: Keys have no effect: 'activator-capacity' (there is no activator)")
	f.Fault("config-gc", "u1", nil)
	f.Fault("config-domain", "u2", errors.New("no name"))
	f.Unused("config-gc", "u1", nil)
	f.Unused("config-network", "u3", []settings.UnusedKey{{Key: "a", Reason: "1"}, {Key: "b", Reason: "2"}})
	expect("while it leads", "Normal ValidSettings system/config-gc/u1: The settings are in force", "Warning InvalidSettings system/config-domain/u2: no name",
		"Warning UnusedSettings system/config-network/u3: Keys have no effect: 'a' (1), 'b' (2)")
	f.lead(false)
	f.Fault("config-domain", "u2", nil)
	expect("when it leads no more")
}
