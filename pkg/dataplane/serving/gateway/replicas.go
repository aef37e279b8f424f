package gateway

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/pool"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/ownership"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/peer"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

const (
	// maxUsage bounds another replica's response about the usage of a Revision, in bytes.
	maxUsage = 8 << 20
	// queryInterval is the interval between attempts of a query that is answered once a condition holds.
	queryInterval = 100 * time.Millisecond
)

// replicas are this replica and the others: they own Revisions, and answer queries by their PeerHandler. It implements
// pool.Owners.
type replicas struct {
	members *membership.View
	holders *ownership.Holders
	// forward sends requests to the others, or is nil.
	forward http.RoundTripper
}

var _ pool.Owners = &replicas{}

// ownerKey is the key by which the owner of a Revision is chosen.
func ownerKey(key routing.Key) string { return "revision/" + key.Namespace + "/" + key.Name }

// Owner implements pool.Owners.
func (r *replicas) Owner(key routing.Key) (owner membership.Member, self bool) {
	return ownership.Among(r.members.Current(), ownerKey).Owner(key)
}

// Shared implements pool.Owners.
func (r *replicas) Shared() bool { return len(r.holders.All()) > 0 }

// Inquire implements pool.Owners.
func (r *replicas) Inquire(key routing.Key, learned func(ownership.Round) bool) {
	ask := func(ctx context.Context, other membership.Member) (ownership.Usage, error) {
		return r.askUsage(ctx, other, key)
	}
	ownership.Inquiry{Holders: r.holders, Ask: ask, Learned: learned}.Run(context.Background())
}

// askUsage queries another replica for its in-flight requests to a Revision.
func (r *replicas) askUsage(ctx context.Context, other membership.Member, key routing.Key) (usage ownership.Usage, err error) {
	query := url.Values{"namespace": {key.Namespace}, "revision": {key.Name}}
	err = peerCall(usagePath, query, func(body io.Reader) error {
		return json.NewDecoder(io.LimitReader(body, maxUsage)).Decode(&usage)
	}).Do(ctx, r.forward, other)
	return usage, err
}

// await queries another replica until it confirms that a condition holds, or the error of a query means that it is gone.
func (r *replicas) await(ctx context.Context, other membership.Member, path string, query url.Values, gone func(error) bool) error {
	return peerCall(path, query, nil).Retry(ctx, r.forward, other, queryInterval, gone)
}

// peerCall returns a query to other replicas. read reads the response; nil ignores it.
func peerCall(path string, query url.Values, read func(io.Reader) error) peer.Call {
	return peer.Call{Method: http.MethodGet, Path: peerPath + path, Query: query, Read: read}
}
