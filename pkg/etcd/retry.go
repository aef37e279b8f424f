package etcd

import (
	"bytes"
	"context"
	"slices"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/raft/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

const (
	// retryAfter is the time from the election of a leader to the retry of the writes that are still pending. Normally, the new leader
	// commits all writes that it knows within a round trip.
	retryAfter = heartbeatMs * time.Millisecond
	// settleAfter is the time in which the outcome of an earlier attempt that was applied arrives, also on a busy machine.
	settleAfter = time.Second
	// lostAfter is the time after which a write that is still pending is retried although no leader was elected. A leader whose transfer of
	// leadership fails discards writes for electionMs and stays the leader.
	lostAfter = 3 * electionMs / 2 * time.Millisecond
	// retryLimit is the time after which a write is not retried unless a leader is elected.
	retryLimit = 10 * time.Second
)

// retrier retries writes that were lost when the leader of the cluster changed, or tried to. While a leader transfers its leadership, as it
// does before it stops, it discards the writes that other members forward to it; etcd reports that to the client only when the request times
// out, nine seconds later. Writes that a leader did not replicate before it crashed are lost in the same way. Only those writes are retried that a
// condition protects from being applied twice, as all writes of API objects are.
type retrier struct {
	// server is nil until etcd has started.
	server atomic.Pointer[etcdserver.EtcdServer]
}

// outcome is the response to an attempt, or its error.
type outcome struct {
	response *pb.TxnResponse
	err      error
}

// intercept is a grpc.UnaryServerInterceptor.
func (r *retrier) intercept(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	txn, ok := request.(*pb.TxnRequest)
	server := r.server.Load()
	if !ok || server == nil || !appliedOnce(txn) {
		return handler(ctx, request)
	}
	return retry(ctx, server.LeaderChangedNotify, func(ctx context.Context) outcome {
		response, err := handler(ctx, request)
		if err != nil {
			return outcome{err: err}
		}
		return outcome{response: response.(*pb.TxnResponse)}
	})
}

// retry calls write, and calls it once more when a leader was elected and the write is still pending, each time that lostAfter has passed
// until the limit, and when the member rejected it. changed returns a channel that is closed at the next election.
func retry(ctx context.Context, changed func() <-chan struct{}, write func(context.Context) outcome) (*pb.TxnResponse, error) {
	attempts, cancel := context.WithCancel(ctx)
	defer cancel()
	outcomes, pending := make(chan outcome), 0
	attempt := func() {
		pending++
		go func() {
			o := write(attempts)
			select {
			case outcomes <- o:
			case <-attempts.Done():
			}
		}()
	}
	limit := time.Now().Add(retryLimit)
	elected, lost := changed(), time.After(lostAfter)
	attempt()
	var due, settled <-chan time.Time
	var unmet *pb.TxnResponse
	for {
		select {
		case <-elected:
			elected = changed()
			due = time.After(retryAfter)
		case <-due:
			due = nil
			attempt()
		case <-lost:
			attempt()
			if time.Now().Add(lostAfter).Before(limit) {
				lost = time.After(lostAfter)
			}
		case o := <-outcomes:
			pending--
			switch {
			case o.err == nil && o.response.Succeeded:
				return o.response, nil
			case o.err == nil:
				// If another attempt was applied before this one, it was answered before it, too, and its outcome arrives now.
				unmet, settled = o.response, time.After(settleAfter)
			case isDropped(o.err) && time.Now().Before(limit):
				if due == nil {
					due = time.After(retryAfter)
				}
				continue
			}
			if pending == 0 && unmet != nil {
				return unmet, nil
			}
			if pending == 0 && due == nil {
				return nil, o.err
			}
		case <-settled:
			select {
			case o := <-outcomes: // it arrived at the same time
				if o.err == nil && o.response.Succeeded {
					return o.response, nil
				}
			default:
			}
			return unmet, nil
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
}

// appliedOnce reports whether a transaction has no effect when it is applied twice: it writes a key under the condition that the key
// was not written since, and writes nothing if the condition is not met.
func appliedOnce(txn *pb.TxnRequest) bool {
	guards := func(c *pb.Compare) bool {
		return c.Result == pb.Compare_EQUAL && (c.Target == pb.Compare_MOD || c.Target == pb.Compare_VERSION) && len(c.RangeEnd) == 0 &&
			slices.ContainsFunc(txn.Success, func(op *pb.RequestOp) bool {
				return bytes.Equal(op.GetRequestPut().GetKey(), c.Key) || bytes.Equal(op.GetRequestDeleteRange().GetKey(), c.Key)
			})
	}
	writes := func(op *pb.RequestOp) bool { return op.GetRequestRange() == nil }
	return slices.ContainsFunc(txn.Compare, guards) && !slices.ContainsFunc(txn.Failure, writes)
}

// isDropped reports whether the member rejected a write because its leadership is being transferred. The write has no effect.
func isDropped(err error) bool {
	return status.Convert(err).Message() == raft.ErrProposalDropped.Error()
}
