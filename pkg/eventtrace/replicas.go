package eventtrace

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/trace"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/peer"
)

const (
	// Element begins the paths by which replicas find the records of each other. Handler serves them.
	Element = "traces"
	// peerTimeout bounds the answer of another replica.
	peerTimeout = 5 * time.Second
	// maxPeerAnswer bounds the records of another replica, in bytes.
	maxPeerAnswer = 16 << 20
)

// Replicas is the Source of the records of this replica and of others.
type Replicas struct {
	// Store has the records of this replica. Nil records nothing.
	Store *trace.Store
	// Peers are the replicas with records; nil if this is the only one. Transport sends requests to them.
	Peers     *membership.View
	Transport http.RoundTripper
}

// Find implements Source. It returns the records in the order of their acceptance. A replica that does not answer within 5 seconds makes
// the result incomplete.
func (r *Replicas) Find(ctx context.Context, q trace.Query) (all []trace.Record, incomplete []string, err error) {
	var mu sync.Mutex
	add := func(replica string, records []trace.Record, more bool) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, records...)
		if more {
			incomplete = append(incomplete, "there are more records of the same ID than are read"+replica)
		}
	}
	wait := peer.AskOthers(r.Peers, func(to membership.Member) error {
		records, more, err := r.ask(ctx, to, q)
		if err == nil {
			add(" at replica "+to.Name, records, more)
		}
		return err
	})
	own, more, err := r.Store.Find(ctx, q)
	add("", own, more)
	incomplete = append(incomplete, wait()...)
	slices.Sort(incomplete)
	slices.SortStableFunc(all, func(a, b trace.Record) int { return a.Accepted.Compare(b.Accepted) })
	return all, incomplete, err
}

// ask finds records of another replica.
func (r *Replicas) ask(ctx context.Context, member membership.Member, q trace.Query) (records []trace.Record, more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	err = peer.Call{Method: http.MethodGet, Path: "/" + Element, Query: encode(q), Read: func(body io.Reader) error {
		data, err := io.ReadAll(io.LimitReader(body, maxPeerAnswer))
		if err != nil {
			return fmt.Errorf("read trace records: %w", err)
		}
		if len(data) == 0 {
			return io.ErrUnexpectedEOF
		}
		more = data[0] != 0
		records, err = trace.ReadRecords(q.Namespace, data[1:])
		return err
	}}.Do(ctx, r.Transport, member)
	return records, more, err
}

// Handler returns the handler of queries by other replicas, below Element.
func (r *Replicas) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		q, err := decode(request.URL.Query())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		records, more, err := r.Store.Find(request.Context(), q)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		// The first byte is 1 if there are more records.
		answer := []byte{0}
		if more {
			answer[0] = 1
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Write(trace.AppendRecords(answer, records)) //nolint:errcheck // the other replica finds out
	})
}

// encode returns a query as parameters of a request.
func encode(q trace.Query) url.Values {
	values := url.Values{
		"namespace": {q.Namespace}, "id": {trace.Cut(q.ID)}, "source": {trace.Cut(q.Source)}, "traceid": {q.TraceID},
		"kind": {string(q.Stream.Kind)}, "name": {q.Stream.Name}, "uid": {string(q.StreamUID)},
	}
	if !q.Accepted.IsZero() {
		values.Set("accepted", strconv.FormatInt(q.Accepted.UnixNano(), 10))
	}
	return values
}

// decode is the inverse of encode.
func decode(values url.Values) (trace.Query, error) {
	q := trace.Query{
		Namespace: values.Get("namespace"), ID: values.Get("id"), Source: values.Get("source"), TraceID: values.Get("traceid"),
		StreamUID: types.UID(values.Get("uid")),
	}
	if name := values.Get("name"); name != "" {
		q.Stream = eventing.Key{Kind: eventing.Kind(values.Get("kind")), Namespace: q.Namespace, Name: name}
	}
	if accepted := values.Get("accepted"); accepted != "" {
		n, err := strconv.ParseInt(accepted, 10, 64)
		if err != nil {
			return q, fmt.Errorf("parameter 'accepted' must be a number of nanoseconds: %w", err)
		}
		q.Accepted = time.Unix(0, n)
	}
	return q, nil
}
