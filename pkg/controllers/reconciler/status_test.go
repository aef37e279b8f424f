package reconciler

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned/fake"
)

const (
	first  duckv1.ConditionType = "First"
	second duckv1.ConditionType = "Second"
)

var (
	earlier = metav1.Unix(1000, 0)
	now     = metav1.Unix(2000, 0)
)

func at(c duckv1.Condition, t metav1.Time) duckv1.Condition {
	c.LastTransitionTime = t
	return c
}

// Observe derives Ready from the conditions (serving 6-12, 6-13), and keeps no condition of an older generation (serving 9.1.3-4, 9.2.3-3).
func TestObserve(t *testing.T) {
	ready := duckv1.Conditions{at(True(first), earlier), at(True(duckv1.ConditionReady), earlier), at(True(second), earlier)}
	for name, test := range map[string]struct {
		generation int64
		found      []duckv1.Condition
		want       duckv1.Conditions
	}{
		"the same again": {1, []duckv1.Condition{True(first), True(second)}, ready},
		"one fails": {1, []duckv1.Condition{False(second, "Broken", "It is.")},
			duckv1.Conditions{at(True(first), earlier), at(False(duckv1.ConditionReady, "Broken", "It is."), now), at(False(second, "Broken", "It is."), now)}},
		"an unseen generation": {2, []duckv1.Condition{True(first)},
			duckv1.Conditions{at(True(first), earlier), at(Unknown(duckv1.ConditionReady, "", ""), now), at(Unknown(second, "", ""), now)}},
		"an unseen generation that is ready": {2, []duckv1.Condition{True(first), True(second)}, ready},
		"Ready itself": {1, []duckv1.Condition{Unknown(duckv1.ConditionReady, "Waiting", "")},
			duckv1.Conditions{at(True(first), earlier), at(Unknown(duckv1.ConditionReady, "Waiting", ""), now), at(True(second), earlier)}},
	} {
		t.Run(name, func(t *testing.T) {
			status := duckv1.Status{ObservedGeneration: 1, Conditions: ready}
			Observe(&status, test.generation, now, []duckv1.ConditionType{first, second}, test.found...)
			if diff := cmp.Diff(duckv1.Status{ObservedGeneration: test.generation, Conditions: test.want}, status); diff != "" {
				t.Errorf("status (-want +got):\n%s", diff)
			}
		})
	}
}

// A condition counts only for the generation for which it was observed.
func TestReady(t *testing.T) {
	revision := &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Generation: 2}}
	revision.Status.Conditions.Set(True(duckv1.ConditionReady), now)
	if got := Ready(revision); got != nil {
		t.Errorf("Ready of an older generation is %v", got)
	}
	revision.Status.ObservedGeneration = 2
	if got := Ready(revision); got == nil || got.Status != corev1.ConditionTrue {
		t.Errorf("Ready is %v, want True", got)
	}
}

// A status is written once, if it changed semantically. An object that no longer exists is not an error.
func TestWrite(t *testing.T) {
	observed := &servingv1.Route{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "hello"}}
	same, changed := observed.DeepCopy(), observed.DeepCopy()
	same.Status.Traffic = []servingv1.TrafficTarget{}
	changed.Status.URL = "http://hello"
	for name, test := range map[string]struct {
		stored  []runtime.Object
		current *servingv1.Route
		writes  int
	}{
		"changed":          {[]runtime.Object{observed}, changed, 1},
		"changed in form":  {[]runtime.Object{observed}, same, 0},
		"changed and gone": {nil, changed, 1},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewSimpleClientset(test.stored...)
			request := NewRequest(named("hello"), true)
			written, err := request.Status.Write(t.Context(), UpdateOf(client.ServingV1().Routes("default"), observed, test.current))
			if err != nil {
				t.Fatal(err)
			}
			if want := test.writes > 0 && test.stored != nil; written != want {
				t.Errorf("written is %v, want %v", written, want)
			}
			if got := len(client.Actions()); got != test.writes {
				t.Errorf("%d writes, want %d", got, test.writes)
			}
		})
	}
}

// A status is not written while the listed object is older than the last write of the same controller.
func TestWriteAfterOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &versions{}
		own := newOwnWrites()
		write := func(uid types.UID, listed string) bool {
			t.Helper()
			observed := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{UID: uid, ResourceVersion: listed}}
			updated := observed.DeepCopy()
			updated.Status.ObservedGeneration = 1
			writer := StatusWriter{writes: true, own: own}
			written, err := writer.Write(t.Context(), UpdateOf(client, observed, updated))
			if err != nil {
				t.Fatal(err)
			}
			return written
		}
		client.next = "100"
		for _, step := range []struct {
			uid    types.UID
			listed string
			want   bool
		}{
			{"a", "99", true}, {"a", "99", false}, {"b", "99", true}, {"a", "100", true}, {"a", "101", true},
		} {
			if got := write(step.uid, step.listed); got != step.want {
				t.Errorf("%s at version %s: written is %v, want %v", step.uid, step.listed, got, step.want)
			}
		}
		if write("a", "99") {
			t.Error("an outdated object was written")
		}
		// The versions are lower after a restore of the storage, even if nothing is written meanwhile.
		for range 2 {
			<-time.After(maxLag + 1)
			own.outdates(&servingv1.Service{ObjectMeta: metav1.ObjectMeta{UID: "c"}})
		}
		if !write("a", "99") {
			t.Errorf("a write is remembered after %s", 2*maxLag)
		}
	})
}

// versions is a client that returns written objects with the next resource version.
type versions struct{ next string }

func (v *versions) UpdateStatus(_ context.Context, s *servingv1.Service, _ metav1.UpdateOptions) (*servingv1.Service, error) {
	s = s.DeepCopy()
	s.ResourceVersion = v.next
	return s, nil
}

// Only rejections that the user can resolve count as refused.
func TestRefused(t *testing.T) {
	resource := servingv1.Resource("revisions")
	broken := errors.New("broken")
	for name, test := range map[string]struct {
		err  error
		want bool
	}{
		"quota":    {apierrors.NewForbidden(resource, "x", broken), true},
		"invalid":  {apierrors.NewInvalid(servingv1.SchemeGroupVersion.WithKind("Revision").GroupKind(), "x", nil), true},
		"conflict": {apierrors.NewConflict(resource, "x", broken), false},
		"busy":     {apierrors.NewTooManyRequests("later", 1), false},
		"internal": {apierrors.NewInternalError(broken), false},
		"network":  {broken, false},
		"none":     {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Refused(test.err); got != test.want {
				t.Errorf("Refused(%v) is %v", test.err, got)
			}
		})
	}
}

// An Event is recorded when an object becomes ready or fails, not while it is becoming ready.
func TestRecordReady(t *testing.T) {
	ready, waiting := True(duckv1.ConditionReady), Unknown(duckv1.ConditionReady, "", "")
	broken := False(duckv1.ConditionReady, "Broken", "It is.")
	for name, test := range map[string]struct {
		before, after duckv1.Conditions
		want          string
	}{
		"became ready":        {duckv1.Conditions{waiting}, duckv1.Conditions{ready}, "Normal Ready Became ready"},
		"ready at once":       {nil, duckv1.Conditions{ready}, "Normal Ready Became ready"},
		"failed":              {duckv1.Conditions{ready}, duckv1.Conditions{broken}, "Warning Broken It is."},
		"failed without word": {nil, duckv1.Conditions{False(duckv1.ConditionReady, "", "It is.")}, "Warning NotReady It is."},
		"still ready":         {duckv1.Conditions{ready}, duckv1.Conditions{at(ready, now)}, ""},
		"becoming":            {duckv1.Conditions{ready}, duckv1.Conditions{waiting}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			recorder := record.NewFakeRecorder(1)
			RecordReady(recorder, &servingv1.Route{}, test.before, test.after)
			var got string
			select {
			case got = <-recorder.Events:
			default:
			}
			if got != test.want {
				t.Errorf("event %q, want %q", got, test.want)
			}
		})
	}
}
