package ownership

import (
	"context"
	"errors"
	"slices"
	"time"
)

// ErrUnreachable is returned when no owner of a key could be reached for as long as Pacing allows.
var ErrUnreachable = errors.New("the owner is not reachable")

// Pacing has the delays of a request that waits for the owner of its key.
type Pacing struct {
	// Patience bounds the time from the first wait.
	Patience time.Duration
	// FirstPause precedes the second attempt, and doubles up to LastPause.
	FirstPause, LastPause time.Duration
}

// Attempts are the attempts of one request to reach the owner of its key.
type Attempts struct {
	Pacing
	// Path has the names of the replicas that forwarded the request to this one.
	Path []string

	until    time.Time
	pause    time.Duration
	returned bool
}

// Wait waits for the next attempt: until the pause is over, or changed is closed. It returns ErrUnreachable when Patience is
// exceeded, and the cause of ctx when it is canceled.
func (a *Attempts) Wait(ctx context.Context, changed <-chan struct{}) error {
	now := time.Now()
	if a.until.IsZero() {
		a.until = now.Add(a.Patience)
	}
	if !now.Before(a.until) {
		return ErrUnreachable
	}
	a.pause = min(max(2*a.pause, a.FirstPause), a.LastPause)
	timer := time.NewTimer(a.pause)
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// WaitBeforeReturn waits, once, if owner has forwarded the request already: one of the two replicas has an outdated
// membership. The longer the path, the longer it waits.
func (a *Attempts) WaitBeforeReturn(ctx context.Context, owner string) (waited bool, err error) {
	if a.returned || !slices.Contains(a.Path, owner) {
		return false, nil
	}
	a.returned = true
	a.pause = min(a.FirstPause<<(len(a.Path)/2), a.LastPause) / 2
	return true, a.Wait(ctx, nil)
}
