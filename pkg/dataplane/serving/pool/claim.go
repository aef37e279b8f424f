package gateway

import (
	"context"
	"math"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/http1"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
)

const (
	// askInterval is between the questions for the requests that other replicas have left.
	askInterval = 50 * time.Millisecond
	// askTimeout bounds a question.
	askTimeout = time.Second
)

// claim is how far a replica that a limited revision belongs to may use the instances. Before it sends a first request
// to them, all other replicas have to say that they do not take the revision for theirs; those that did before it may
// have requests left, which count until they have ended. So no instance has more than it may have. The pool's lock
// guards it.
type claim struct {
	// open tells that others may have requests, asking that they are being asked.
	open, asking bool
	// turn counts how often the revision came here.
	turn int
	// others has the requests of all others by instance, or is nil where they are not known.
	others map[string]int
}

// locate finds out which replica the pool's requests are for. p.mu is held.
func (p *pool) locate() {
	var owner *membership.Member
	limited := p.limit < math.MaxInt
	if limited {
		if o, self := p.owners.owner(p.key); !self {
			owner = &o
		}
	}
	before := p.owner.Swap(owner)
	switch {
	case owner != nil:
		p.claim = claim{turn: p.claim.turn}
		p.refuse(http1.HandOver)
		p.start = coldStart{}
	case !limited:
		p.claim = claim{turn: p.claim.turn}
	case before != nil || p.claim.turn == 0:
		p.claim = claim{turn: p.claim.turn + 1, open: p.owners.shared()}
	}
}

// claimed tells whether the instances may be used, and begins to ask where that is not known. p.mu is held.
func (p *pool) claimed() bool {
	switch {
	case p.owner.Load() != nil:
		return false
	case !p.claim.open:
		return true
	case !p.claim.asking:
		p.claim.asking = true
		go p.ask(p.owners.survey(p.key), p.claim.turn)
	}
	return p.claim.others != nil
}

// ask asks the other replicas for their requests until there are none, or no request waits.
func (p *pool) ask(survey survey, turn int) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for p.learn(survey, turn) {
		timer.Reset(askInterval)
		<-timer.C
	}
}

// learn asks once. It reports whether to ask once more.
func (p *pool) learn(survey survey, turn int) bool {
	others, known := survey.ask(context.Background())
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.claim.turn != turn || p.owner.Load() != nil || !p.claim.open {
		return false
	}
	p.claim.others = nil
	if known {
		p.claim.others = others
		p.claim.open = len(others) > 0
	}
	p.dispatch()
	p.claim.asking = p.claim.open && p.queue.length > 0
	return p.claim.asking
}

// held is what a replica tells of its requests to a revision.
type held struct {
	// Owner tells that it takes the revision for its own: then it may get more.
	Owner bool `json:"owner,omitempty"`
	// Requests are those in flight by instance.
	Requests map[string]int `json:"requests,omitempty"`
}

// held returns the requests in flight.
func (p *pool) held() *held {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := &held{Owner: p.limit < math.MaxInt && p.owner.Load() == nil, Requests: map[string]int{}}
	for _, instances := range []map[string]*instance{p.all, p.gone} {
		for name, inst := range instances {
			if inst.inFlight > 0 {
				h.Requests[name] += inst.inFlight
			}
		}
	}
	return h
}

// follow takes note of other replicas. What belongs elsewhere from now on goes there, what is in flight ends here.
func (g *Gateway) follow(set *membership.Set) {
	g.peers.follow(set)
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.pools {
		p.mu.Lock()
		p.locate()
		p.dispatch()
		p.mu.Unlock()
	}
}
