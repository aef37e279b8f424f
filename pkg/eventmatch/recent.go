package eventmatch

import (
	"context"
	"time"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/filter"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/trace"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

const (
	// MaxRecent bounds the events that Unmatched evaluates.
	MaxRecent = 100
	// maxDelay bounds the time for which Unmatched delays its caller.
	maxDelay = 5 * time.Millisecond
	// maxEvaluations bounds the evaluations in progress, which may take longer than their callers wait.
	maxEvaluations = 4
)

// Unmatched returns the number of last events of the Broker of a Trigger that are known, at most MaxRecent, if none of them passes its
// filters. It returns 0 if one does, or if that cannot be told within 5 milliseconds.
func (m *Matcher) Unmatched(ctx context.Context, t *eventingv1.Trigger) (events int) {
	attributes, filters := FiltersOf(t)
	if m.Recent == nil || len(attributes)+len(filters) == 0 {
		return 0
	}
	if m.evaluations.Add(1) > maxEvaluations {
		m.evaluations.Add(-1)
		return 0
	}
	// The caller may change the Trigger while the evaluation goes on.
	t = t.DeepCopy()
	ctx, cancel := context.WithTimeout(ctx, m.delay())
	result := make(chan int, 1)
	go func() {
		defer cancel()
		defer m.evaluations.Add(-1)
		result <- m.unmatched(ctx, t)
	}()
	select {
	case events = <-result:
		return events
	case <-ctx.Done():
		return 0
	}
}

func (m *Matcher) delay() time.Duration {
	if m.maxDelay > 0 {
		return m.maxDelay
	}
	return maxDelay
}

func (m *Matcher) unmatched(ctx context.Context, t *eventingv1.Trigger) int {
	compiled, err := filter.Compile(FiltersOf(t))
	if err != nil {
		return 0
	}
	name := t.BrokerName()
	recent := m.Recent(ctx, eventing.Key{Kind: eventing.Broker, Namespace: name.Namespace, Name: name.Name})
	budget := filter.NewBudget(ctx)
	for _, e := range recent {
		// An event that exceeds the budget may match with another one.
		if matched, ok := compiled.Match(budget, e); matched || !ok {
			return 0
		}
	}
	if ctx.Err() != nil {
		return 0
	}
	return len(recent)
}

// Events returns the events of acceptances. Those whose texts were cut are left out, because filters may decide about them otherwise.
func Events(recent []trace.Record) []*event.Event {
	events := make([]*event.Event, 0, len(recent))
	for i := range recent {
		if r := &recent[i]; !r.Acceptance.Cut && len(r.ID) < trace.MaxText && len(r.Source) < trace.MaxText {
			events = append(events, r.Acceptance.Event(r))
		}
	}
	return events
}
