package eventing

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Run delivers stored events again: dead letters to their consumer, or archived events. Immutable.
type Run struct {
	// ID is the UID of the EventRun. Each event gets it as an attribute.
	ID types.UID
	// Consumer gets the events, ConsumerUID is its original UID. Without one, all consumers of the Broker of Replay get them whose filters match.
	Consumer    Key
	ConsumerUID types.UID
	// Last is the name of the last dead letter that is part of the run. Unused with Replay.
	Last string
	// Replay selects archived events. Nil selects dead letters.
	Replay *Replay
	// Filters must all pass an event.
	Filters []Filter
	// Rate is the maximum number of events per second. 0 means no maximum.
	Rate int
	// Destination gets dead letters instead of the consumer. Nil stands for the consumer. A later call of Start may have another one. Unused with Replay.
	Destination *Endpoint
	// Begin is true once the number of dead letters is stored. Before, the run counts them only, so that its progress is known after an interruption.
	// Unused with Replay.
	Begin bool
}

// Replay selects archived events of a Broker. Immutable.
type Replay struct {
	// Broker accepted the events, BrokerUID is its original UID.
	Broker    Key
	BrokerUID types.UID
	// From and To bound the times of acceptance: from From on, before To. From may be zero.
	From, To time.Time
	// Stored is the progress that is stored by now. The replay continues from it, and gets a bounded number of events ahead of it.
	Stored ReplayProgress
}

// ReplayProgress is how far a replay got.
type ReplayProgress struct {
	// Position is the place in the archive from which the replay continues. Empty at the beginning.
	Position string
	// Queued and Failed are the numbers of events before it, as in RunProgress.
	Queued, Failed int64
	// LastEvent is the time at which the last queued event was accepted. Zero without one.
	LastEvent time.Time
	// Evicted is true if events were deleted from the archive before they were read.
	Evicted bool
}

// RunProgress is the progress of a Run since its last start.
type RunProgress struct {
	// Counted is true once Remaining is known: the number of events that were selected at the start.
	Counted   bool
	Remaining int64
	// Queued is the number of events that were queued for delivery or deleted meanwhile, Failed the number of events that are too large for the event log.
	// Both are 0 for a replay, which has its own.
	Queued, Failed int64
	// Replay is the progress of a replay.
	Replay ReplayProgress
	// Waiting is why the run waits. Empty while it progresses.
	Waiting string
	// Ended is true once nothing is left to do.
	Ended bool
	// Err is why the run ended before all events were queued. Nil if they are.
	Err error
}

// Errors of runs that cannot continue.
var (
	// ErrArchiveReplaced means that the archive was deleted during a replay.
	ErrArchiveReplaced = errors.New("the archive was deleted during the replay")
	// ErrPosition means that the stored position of a replay is invalid.
	ErrPosition = errors.New("the stored position of the replay is invalid")
)

// Runs executes runs. A run that is interrupted at any point continues after the next start, and loses no event. A redrive delivers the event of the
// interruption twice at most, a replay the events after the progress that was stored.
type Runs interface {
	// Serves reports whether this replica delivers to a consumer.
	Serves(consumer Key, uid types.UID) bool
	// Last returns the name of the last dead letter of a namespace at the moment. It is empty without dead letters.
	Last(ctx context.Context, namespace string) (string, error)
	// Start starts a run, unless it was started before, and returns its progress. name is the name of the EventRun; another run of the same
	// name is stopped first. Only Begin and Replay.Stored of a started run may change.
	Start(name types.NamespacedName, run Run) RunProgress
	// Stop ends the run of a name, if there is one, and forgets its progress. It waits until the event in progress is queued.
	Stop(name types.NamespacedName)
}
