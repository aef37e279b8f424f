package components

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/record"
)

// Faults become Events in order, also those found before Events can be recorded.
func TestFaults(t *testing.T) {
	recorder := record.NewFakeRecorder(10)
	recorder.IncludeObject = true
	f := &faults{}
	f.report("config-gc", errors.New("min-non-active-revisions must be a number"))
	f.report("config-gc", nil)
	f.recordBy(recorder)
	f.report("config-network", errors.New("rollout-duration must be a duration"))
	close(recorder.Events)
	var got []string
	for event := range recorder.Events {
		got = append(got, event)
	}
	const about = " involvedObject{kind=ConfigMap,apiVersion=v1}"
	want := []string{
		"Warning InvalidSettings min-non-active-revisions must be a number" + about,
		"Normal ValidSettings The settings are in force" + about,
		"Warning InvalidSettings rollout-duration must be a duration" + about,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}
