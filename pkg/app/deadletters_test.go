package app

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
)

// TestEvictionEvents records an Event for each consumer at most every ten minutes, with the sum of the evictions since the last one.
func TestEvictionEvents(t *testing.T) {
	informer := cache.NewSharedIndexInformer(&cache.ListWatch{}, &eventingv1.Trigger{}, 0, cache.Indexers{byUID: func(obj any) ([]string, error) {
		return []string{string(obj.(*eventingv1.Trigger).UID)}, nil
	}})
	for _, name := range []string{"a", "b"} {
		if err := informer.GetIndexer().Add(&eventingv1.Trigger{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}); err != nil {
			t.Fatal(err)
		}
	}
	recorder, now := record.NewFakeRecorder(10), clocktesting.NewFakePassiveClock(time.Now())
	e := &evictionEvents{known: &knownObjects{informers: []cache.SharedIndexInformer{informer}}, recorder: recorder, clock: now}
	expect := func(want ...string) {
		t.Helper()
		var got []string
		for len(recorder.Events) > 0 {
			got = append(got, <-recorder.Events)
		}
		if !slices.Equal(got, want) {
			t.Errorf("Events %q, want %q", got, want)
		}
	}
	message := func(count string) string {
		return "Warning DeadLettersEvicted The dead letter store is full: about " + count + " dead letters were deleted, the oldest first"
	}
	e.add("ns", map[types.UID]uint64{"a": 3, "gone": 1})
	expect(message("3"))
	e.add("ns", map[types.UID]uint64{"a": 2})
	e.add("ns", map[types.UID]uint64{"b": 1})
	expect(message("1"))
	now.SetTime(now.Now().Add(evictionsInterval))
	e.add("ns", map[types.UID]uint64{"a": 5})
	expect(message("7"))
	if len(e.about) != 2 {
		t.Errorf("it remembers %d consumers", len(e.about))
	}
}
