package gateway

import (
	"context"

	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/ownership"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// owners knows which replica owns a Revision. One of the replicas sends all requests to the backends of a Revision with
// containerConcurrency, so that their number is bounded whichever gateway they come to (serving 8-7).
type owners interface {
	// owner returns the replica that owns a Revision; self is true if it is this one.
	owner(key routing.Key) (owner membership.Member, self bool)
	// shared reports whether other replicas may have requests in flight.
	shared() bool
	// survey returns a survey of the requests that other replicas may have in flight at the backends of a Revision that
	// this one owns now.
	survey(key routing.Key) survey
}

// survey asks the other replicas for the requests that they have in flight at the backends of a Revision.
type survey interface {
	// ask asks the replicas once that may have some. requests are the requests by backend; known is false if a replica did
	// not answer or takes itself for the owner. Once known is true and requests is empty, no other replica sends any.
	ask(ctx context.Context) (requests map[string]int, known bool)
}

var _ owners = &Gateway{}

// ownerKey is the key by which the owner of a Revision is chosen.
func ownerKey(key routing.Key) string { return "revision/" + key.Namespace + "/" + key.Name }

// owner implements owners.
func (g *Gateway) owner(key routing.Key) (owner membership.Member, self bool) {
	return ownership.Among(g.options.Members.Current(), ownerKey).Owner(key)
}

// shared implements owners.
func (g *Gateway) shared() bool { return len(g.others()) > 0 }

// survey implements owners.
func (g *Gateway) survey(key routing.Key) survey {
	return &peerSurvey{gateway: g, key: key, ended: map[string]bool{}}
}

// peerSurvey asks the replicas through their PeerHandler.
type peerSurvey struct {
	gateway *Gateway
	key     routing.Key
	// ended has the replicas that have no requests left, and will not have any.
	ended map[string]bool
}

// ask implements survey.
func (s *peerSurvey) ask(ctx context.Context) (requests map[string]int, known bool) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	type reply struct {
		member string
		held   *held
	}
	var asked int
	replies := make(chan reply)
	for _, other := range s.gateway.others() {
		if s.ended[other.Name] {
			continue
		}
		asked++
		go func() {
			answer := s.gateway.askHeld(ctx, other, s.key)
			replies <- reply{other.Name, answer}
		}()
	}
	requests, known = map[string]int{}, true
	for range asked {
		r := <-replies
		if r.held == nil || r.held.Owner {
			known = known && r.held == nil && s.gateway.forget(r.member)
			continue
		}
		s.ended[r.member] = len(r.held.Requests) == 0
		for backend, n := range r.held.Requests {
			requests[backend] += n
		}
	}
	return requests, known
}
