package eventing

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
)

// Run delivers dead letters to their consumer again. Immutable.
type Run struct {
	// ID is the UID of the EventRun. Each event gets it as an attribute.
	ID types.UID
	// Consumer gets the events, ConsumerUID is its original UID.
	Consumer    Key
	ConsumerUID types.UID
	// Last is the name of the last dead letter that is part of the run.
	Last string
	// Filters must all pass an event.
	Filters []Filter
	// Rate is the maximum number of events per second. 0 means no maximum.
	Rate int
	// Begin is true once the number of events is stored. Before, the run counts them only, so that its progress is known after an interruption.
	Begin bool
}

// RunProgress is the progress of a Run since its last start.
type RunProgress struct {
	// Counted is true once Remaining is known: the number of events that were selected at the start.
	Counted   bool
	Remaining int64
	// Queued is the number of events that were queued for delivery or deleted meanwhile, Failed the number of events that are too large for the event log.
	Queued, Failed int64
	// Waiting is why the run waits. Empty while it progresses.
	Waiting string
	// Ended is true once nothing is left to do.
	Ended bool
}

// Runs executes runs. A run that is interrupted at any point continues after the next start: at most the event of the interruption is delivered
// twice.
type Runs interface {
	// Last returns the name of the last dead letter of a namespace at the moment. It is empty without dead letters.
	Last(ctx context.Context, namespace string) (string, error)
	// Start starts a run, unless it was started before, and returns its progress. name is the name of the EventRun; another run of the same
	// name is stopped first. Only Begin of a started run may change.
	Start(name types.NamespacedName, run Run) RunProgress
	// Stop ends the run of a name, if there is one, and forgets its progress. It waits until the event in progress is queued.
	Stop(name types.NamespacedName)
}
