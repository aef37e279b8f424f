package components

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
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

// Faults become Events of the replica that leads, those too that were found before it did.
func TestFaults(t *testing.T) {
	recorder := &recorded{}
	f := &faults{namespace: "system"}
	expect := func(what string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, recorder.events); diff != "" {
			t.Errorf("events %s (-want +got):\n%s", what, diff)
		}
		recorder.events = nil
	}
	f.report("config-gc", "u1", errors.New("not a number"))
	f.report("config-domain", "u2", errors.New("not a name"))
	f.report("config-domain", "u2", nil)
	f.recordBy(recorder)
	f.report("config-network", "u3", errors.New("not a duration"))
	expect("of a replica that follows")
	f.lead(true)
	expect("once it leads", "Warning InvalidSettings system/config-gc/u1: not a number", "Warning InvalidSettings system/config-network/u3: not a duration")
	f.report("config-gc", "u1", nil)
	f.report("config-domain", "u2", errors.New("no name"))
	expect("while it leads", "Normal ValidSettings system/config-gc/u1: The settings are in force", "Warning InvalidSettings system/config-domain/u2: no name")
	f.lead(false)
	f.report("config-domain", "u2", nil)
	expect("when it leads no more")
}
