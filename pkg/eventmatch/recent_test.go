package eventmatch

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/trace"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

func typed(types ...string) (events []*event.Event) {
	for _, kind := range types {
		events = append(events, &event.Event{Attributes: []event.Attribute{{Name: "id", Value: "1"}, {Name: "source", Value: "/"}, {Name: "type", Value: kind}}})
	}
	return events
}

func triggerOf(spec eventingv1.TriggerSpec) *eventingv1.Trigger {
	t := &eventingv1.Trigger{Spec: spec}
	t.Namespace, t.Spec.Broker = "shop", "orders"
	return t
}

// TestUnmatched counts the recent events if none matches, and says nothing if one does, or if that is not known.
func TestUnmatched(t *testing.T) {
	exact := func(kind string) eventingv1.TriggerSpec {
		return eventingv1.TriggerSpec{Filter: &eventingv1.TriggerFilter{Attributes: map[string]string{"type": kind}}}
	}
	long := typed("a")
	long[0].Attributes = append(long[0].Attributes, event.Attribute{Name: "long", Value: strings.Repeat("a", 60<<10)})
	for name, test := range map[string]struct {
		spec   eventingv1.TriggerSpec
		recent []*event.Event
		want   int
	}{
		"none matches":   {exact("c"), typed("a", "b"), 2},
		"one matches":    {exact("b"), typed("a", "b"), 0},
		"no events":      {exact("c"), nil, 0},
		"without filter": {eventingv1.TriggerSpec{}, typed("a", "b"), 0},
		"invalid":        {eventingv1.TriggerSpec{Filters: filters{{CESQL: "("}}}, typed("a"), 0},
		"expensive":      {eventingv1.TriggerSpec{Filters: filters{{CESQL: "long LIKE '%" + strings.Repeat("a", 3900) + "_b%'"}}}, long, 0},
	} {
		t.Run(name, func(t *testing.T) {
			m := &Matcher{maxDelay: time.Minute, Recent: func(_ context.Context, broker eventing.Key) []*event.Event {
				if broker != (eventing.Key{Kind: eventing.Broker, Namespace: "shop", Name: "orders"}) {
					t.Errorf("asked for %s", broker)
				}
				return test.recent
			}}
			if got := m.Unmatched(t.Context(), triggerOf(test.spec)); got != test.want {
				t.Errorf("got %d, want %d", got, test.want)
			}
		})
	}
	if got := (&Matcher{}).Unmatched(t.Context(), triggerOf(exact("c"))); got != 0 {
		t.Errorf("without recent events: %d", got)
	}
}

// TestUnmatchedSlow delays callers for a few milliseconds only, and runs few evaluations at a time.
func TestUnmatchedSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		release := make(chan struct{})
		m := &Matcher{Recent: func(context.Context, eventing.Key) []*event.Event {
			calls.Add(1)
			<-release
			return typed("a")
		}}
		trigger := triggerOf(eventingv1.TriggerSpec{Filters: filters{{CESQL: "FALSE"}}})
		start := time.Now()
		for range 2 * maxEvaluations {
			if got := m.Unmatched(t.Context(), trigger); got != 0 {
				t.Errorf("got %d", got)
			}
		}
		if took := time.Since(start); took != maxEvaluations*maxDelay || calls.Load() != maxEvaluations {
			t.Errorf("took %s for %d calls", took, calls.Load())
		}
		close(release)
		synctest.Wait()
		if got := m.Unmatched(t.Context(), trigger); got != 1 {
			t.Errorf("afterwards: %d", got)
		}
	})
}

// TestEvents leaves out events of which parts are missing.
func TestEvents(t *testing.T) {
	record := func(id string, cut bool) trace.Record {
		return trace.Record{ID: id, Source: "/s", Acceptance: &trace.Acceptance{Cut: cut, V03: true, Attributes: []event.Attribute{{Name: "type", Value: "t"}}}}
	}
	got := Events([]trace.Record{record("1", false), record("2", true), record(strings.Repeat("3", trace.MaxText), false)})
	if len(got) != 1 || !got[0].V03 {
		t.Fatalf("got %+v", got)
	}
	for name, want := range map[string]string{"id": "1", "source": "/s", "type": "t"} {
		if value, _ := got[0].Get(name); value != want {
			t.Errorf("%s is %q", name, value)
		}
	}
}
