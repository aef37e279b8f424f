package filter

import (
	"context"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
)

// A step is the unit of evaluation cost: about one compared or copied byte. Visiting a node of a filter takes nodeCost
// steps and, where it reads an attribute by name, one for each attribute of the event.
const (
	nodeCost = 8
	// allowance is the number of steps that each filter may take for each event, regardless of other filters.
	allowance = 16 << 10
	// maxFilterSteps bounds the steps of one filter for one event.
	maxFilterSteps = 1 << 20
	// sharedSteps is the number of steps beyond their allowance that all filters together may take for the events of one
	// request.
	sharedSteps = 8 << 20
	// drawSteps is the number of steps that a filter takes from the shared ones at a time.
	drawSteps = 64 << 10
	// checkFilters is the number of filters after which the context is checked again.
	checkFilters = 64
)

// Budget bounds the cost of evaluating filters for the events of one request. A filter that exceeds it does not match,
// and does not reduce the allowance of other filters. Not safe for concurrent use.
type Budget struct {
	ctx    context.Context
	shared int
	// filters is the number of evaluated filters, err the error of ctx once it was observed.
	filters int
	err     error
	// left and drawn are the steps that the current filter may still take, and those it has taken from shared. exceeded
	// reports whether it was stopped.
	left, drawn int
	exceeded    bool
	// total is the number of steps that all filters have taken.
	total int
	// subject is kept here so that evaluating an event allocates nothing.
	subject subject
}

// NewBudget returns the budget of one request. Evaluation ends soon after ctx is done.
func NewBudget(ctx context.Context) *Budget {
	return &Budget{ctx: ctx, shared: sharedSteps}
}

// of returns the subject of evaluating filters for an event, until the next one.
func (b *Budget) of(e *event.Event) *subject {
	b.subject = subject{event: e, budget: b}
	return &b.subject
}

// Err returns the error of the context if the evaluation stopped because of it.
func (b *Budget) Err() error { return b.err }

// begin starts to count the steps of one filter for one event.
func (b *Budget) begin() {
	if b.filters%checkFilters == 0 {
		b.check()
	}
	b.filters++
	b.left, b.drawn, b.exceeded = allowance, 0, b.err != nil
}

// end returns unused shared steps. ok is false if the result of the filter is not known because it was stopped.
func (b *Budget) end() (ok bool) {
	b.total += allowance + b.drawn - b.left
	if b.drawn > 0 {
		b.shared += min(b.left, b.drawn)
	}
	return !b.exceeded
}

// spend counts steps before they are taken. It returns false if the filter may not take them.
func (b *Budget) spend(steps int) bool {
	if b.exceeded {
		return false
	}
	if steps <= b.left {
		b.left -= steps
		return true
	}
	more := max(steps-b.left, drawSteps)
	b.check()
	if b.err != nil || more > b.shared || allowance+b.drawn+more > maxFilterSteps {
		b.exceeded = true
		return false
	}
	b.shared -= more
	b.drawn += more
	b.left += more - steps
	return true
}

func (b *Budget) check() {
	if b.err == nil {
		b.err = b.ctx.Err()
	}
}
