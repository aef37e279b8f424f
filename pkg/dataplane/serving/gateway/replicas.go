package gateway

import (
	"context"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/pool"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/ownership"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// owners implements pool.Owners for the replicas of a gateway.
type owners struct{ gateway *Gateway }

var _ pool.Owners = owners{}

// ownerKey is the key by which the owner of a Revision is chosen.
func ownerKey(key routing.Key) string { return "revision/" + key.Namespace + "/" + key.Name }

// Owner implements pool.Owners.
func (o owners) Owner(key routing.Key) (owner membership.Member, self bool) {
	return ownership.Among(o.gateway.options.Members.Current(), ownerKey).Owner(key)
}

// Shared implements pool.Owners.
func (o owners) Shared() bool { return len(o.gateway.holders.All()) > 0 }

// Inquire implements pool.Owners.
func (o owners) Inquire(key routing.Key, learned func(ownership.Round) bool) {
	ask := func(ctx context.Context, other membership.Member) (ownership.Usage, error) {
		return o.gateway.askUsage(ctx, other, key)
	}
	ownership.Inquiry{Holders: o.gateway.holders, Ask: ask, Learned: learned}.Run(context.Background())
}

// membersChanged applies a new membership: waiting requests are forwarded to the new owners of their Revisions.
func (g *Gateway) membersChanged(set *membership.Set) {
	g.holders.Set(set)
	g.pools.OwnersChanged()
}
