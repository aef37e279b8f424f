package ownership

import (
	"context"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
)

const (
	// askInterval is the pause between queries to other replicas, askTimeout bounds one query.
	askInterval, askTimeout = 50 * time.Millisecond, time.Second
)

// Usage is a replica's answer to a query about a key.
type Usage struct {
	// Owner is true if the replica considers itself the owner: then it may use more.
	Owner bool `json:"owner,omitempty"`
	// Requests counts its requests by backend.
	Requests map[string]int `json:"requests,omitempty"`
}

// Claim limits the use of backends by a new owner of a key to the capacity that other replicas do not use. The new owner sends no requests
// before every other replica has answered that it is not the owner, or must have stopped. From then on the remaining requests of these
// replicas count, so that no backend gets more than its limit. The zero value is the claim of a replica that does not own the key. It is
// not safe for concurrent use.
type Claim struct {
	// generation counts the handovers to this replica.
	generation int
	// open is true while other replicas may have requests, and asking while they are being asked.
	open, asking bool
	// others counts the requests of other replicas by backend; nil while unknown.
	others map[string]int
}

// Gained reports whether this replica has ever owned the key.
func (c *Claim) Gained() bool { return c.generation > 0 }

// Gain starts the claim of a new owner. It is open if others may have requests.
func (c *Claim) Gain(open bool) { *c = Claim{generation: c.generation + 1, open: open} }

// Release ends the claim, because another replica owns the key, or every replica may use it without a limit.
func (c *Claim) Release() { *c = Claim{generation: c.generation} }

// Usable reports whether requests may be sent to backends, within their limits less Others.
func (c *Claim) Usable() bool { return !c.open || c.others != nil }

// Others returns the number of requests that other replicas have at a backend.
func (c *Claim) Others(backend string) int { return c.others[backend] }

// Ask reports whether the caller must start an Inquiry, and returns the generation for Learn.
func (c *Claim) Ask() (generation int, start bool) {
	start = c.open && !c.asking
	c.asking = c.open
	return c.generation, start
}

// Learn records the result of a round of an Inquiry, and reports whether it was accepted.
func (c *Claim) Learn(generation int, round Round) bool {
	if c.generation != generation || !c.open {
		return false
	}
	c.others = nil
	if round.Known {
		c.others = round.Requests
		c.open = len(round.Requests) > 0
	}
	return true
}

// Continue reports whether the Inquiry continues, which it does while a request waits.
func (c *Claim) Continue(waiting bool) bool {
	c.asking = c.open && waiting
	return c.asking
}

// Inquiry asks the other replicas for their usage of a key.
type Inquiry struct {
	Holders *Holders
	// Ask asks one replica.
	Ask func(context.Context, membership.Member) (Usage, error)
	// Learned receives the result of each round, and reports whether to continue.
	Learned func(Round) bool
	// StopTime is the time after which a former member without a connection has certainly ended all its requests.
	StopTime time.Duration
	// UpToDate reports whether the membership follows from the latest renewal of a replica's Lease. Nil means true.
	UpToDate func(ctx context.Context, name string) (bool, error)
}

// Round is the result of one query to each replica.
type Round struct {
	// Known is true if every replica has answered that it is not the owner, or must have stopped.
	Known bool
	// Requests counts the requests of these replicas by backend.
	Requests map[string]int
}

// Run queries the replicas until Learned returns false.
func (i Inquiry) Run(ctx context.Context) {
	// ended has the replicas without remaining requests, which get no more.
	ended := map[string]bool{}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i.Learned(i.round(ctx, ended)) {
		timer.Reset(askInterval)
		<-timer.C
	}
}

func (i Inquiry) round(outer context.Context, ended map[string]bool) Round {
	ctx, cancel := context.WithTimeout(outer, askTimeout)
	defer cancel()
	type answer struct {
		member string
		usage  Usage
		err    error
	}
	var asked int
	answers := make(chan answer)
	for _, other := range i.Holders.All() {
		if ended[other.Name] {
			continue
		}
		asked++
		go func() {
			usage, err := i.Ask(ctx, other)
			answers <- answer{other.Name, usage, err}
		}()
	}
	round := Round{Known: true, Requests: map[string]int{}}
	for range asked {
		a := <-answers
		switch {
		case a.err != nil:
			round.Known = i.stopped(outer, a.member) && round.Known
		case a.usage.Owner:
			round.Known = false
		default:
			ended[a.member] = len(a.usage.Requests) == 0
			for backend, n := range a.usage.Requests {
				round.Requests[backend] += n
			}
		}
	}
	return round
}

// stopped reports whether a replica that does not answer must have stopped, and forgets it then. A missing answer alone is not sufficient:
// the replica may still reach backends, and its requests may be in flight there.
func (i Inquiry) stopped(ctx context.Context, name string) bool {
	since, known := i.Holders.since(name)
	if !known {
		return true
	}
	if since.IsZero() || time.Since(since) < i.StopTime {
		return false
	}
	if i.UpToDate != nil {
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		if upToDate, err := i.UpToDate(ctx, name); err != nil || !upToDate {
			return false
		}
	}
	return i.Holders.forgetSince(name, since)
}
