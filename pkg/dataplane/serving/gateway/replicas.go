package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/linger"
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
	// stopTime is the time after which a former member without a connection has ended all its requests: its standing lapses, it
	// interrupts them, and their places end. The last second covers clocks that run at different rates.
	stopTime = ownership.Validity + linger.Bound + time.Second
	// announceTimeout bounds the time of announcing that this replica has stopped.
	announceTimeout = 2 * time.Second
)

// replicas are this replica and the others: they own Revisions, and answer queries by their PeerHandler. It implements
// pool.Owners.
type replicas struct {
	members *membership.View
	holders *ownership.Holders
	// forward sends requests to the others, or is nil.
	forward http.RoundTripper
	// standing is nil without other replicas.
	standing *ownership.Standing
	// upToDate reports whether members follows from the latest renewal of a replica's Lease, or is nil.
	upToDate func(ctx context.Context, name string) (bool, error)
}

var _ pool.Owners = &replicas{}

// ownerKey is the key by which the owner of a Revision is chosen.
func ownerKey(key routing.Key) ownership.Place {
	return ownership.Place{Name: "revision/" + key.Namespace + "/" + key.Name}
}

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
	ownership.Inquiry{Holders: r.holders, Ask: ask, Learned: learned, StopTime: stopTime, UpToDate: r.upToDate}.Run(context.Background())
}

// Standing implements pool.Owners.
func (r *replicas) Standing() (term int, valid bool) { return r.standing.Current() }

// confirm asks all known replicas whether they consider this one a member or, once it drains, whether they still count its requests.
func (r *replicas) confirm(ctx context.Context) error {
	draining := !r.holders.Member(r.members.Current().Self())
	return r.tellAll(func(other membership.Member) error {
		return r.tell(standingPath, draining).Do(ctx, r.forward, other)
	})
}

// announceStopped announces to all other replicas that this one has stopped, so that they need not wait for stopTime.
func (r *replicas) announceStopped(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, announceTimeout)
	defer cancel()
	return r.tellAll(func(other membership.Member) error {
		return r.tell(leftPath, true).Retry(ctx, r.forward, other, queryInterval, func(error) bool { return false })
	})
}

// tell returns a call that sends the state of this replica to another one.
func (r *replicas) tell(path string, draining bool) peer.Call {
	query := url.Values{"member": {r.members.Current().Self()}, "draining": {strconv.FormatBool(draining)}}
	return peer.Call{Method: http.MethodPost, Path: peerPath + path, Query: query}
}

// tellAll calls tell for all other replicas, and returns all errors.
func (r *replicas) tellAll(tell func(membership.Member) error) error {
	others := r.holders.All()
	errs := make([]error, len(others))
	var running sync.WaitGroup
	for i, other := range others {
		running.Go(func() { errs[i] = tell(other) })
	}
	running.Wait()
	return errors.Join(errs...)
}

// serveStanding confirms another replica, or responds with 409.
func (r *replicas) serveStanding(w http.ResponseWriter, in *http.Request) {
	query := in.URL.Query()
	answer(w, r.holders.Confirm(query.Get("member"), query.Get("draining") == "true"))
}

// serveLeft records that another replica has stopped. It responds with 409 while the replica is still a member.
func (r *replicas) serveLeft(w http.ResponseWriter, in *http.Request) {
	answer(w, r.holders.Forget(in.URL.Query().Get("member")))
}

func answer(w http.ResponseWriter, yes bool) {
	if !yes {
		http.Error(w, "the membership differs", http.StatusConflict)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// askUsage queries another replica for its in-flight requests to a Revision.
func (r *replicas) askUsage(ctx context.Context, other membership.Member, key routing.Key) (usage ownership.Usage, err error) {
	query := url.Values{"namespace": {key.Namespace}, "revision": {key.Name}}
	err = peerCall(usagePath, query, func(body io.Reader) error {
		return json.NewDecoder(io.LimitReader(body, maxUsage)).Decode(&usage)
	}).Do(ctx, r.forward, other)
	return usage, err
}

// await queries another replica until it confirms that a condition holds, or the error of a query means that it has stopped.
func (r *replicas) await(ctx context.Context, other membership.Member, path string, query url.Values, gone func(error) bool) error {
	return peerCall(path, query, nil).Retry(ctx, r.forward, other, queryInterval, gone)
}

// peerCall returns a query to other replicas. read reads the response; nil ignores it.
func peerCall(path string, query url.Values, read func(io.Reader) error) peer.Call {
	return peer.Call{Method: http.MethodGet, Path: peerPath + path, Query: query, Read: read}
}
