package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/raft/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestLeaderMoves checks that no write fails or is lost while the leadership moves between members, and that each is applied once.
func TestLeaderMoves(t *testing.T) {
	t.Parallel()
	const moves = 40
	f := newFleet(t, 3)
	f.start(0, 1, 2)
	finish := f.write(0, 1, 2)
	for i := range moves {
		leader := f.leader()
		if err := f.move(leader, (leader+1+i%2)%3); err != nil {
			t.Logf("move %d: %v", i, err)
		}
	}
	if err := finish(); err != nil {
		t.Error(err)
	}
}

// TestTransferFails checks the same while the leadership is moved to a member that has stopped, so that the leader stays.
func TestTransferFails(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3)
	f.start(0, 1, 2)
	leader := f.leader()
	follower, stopped := (leader+1)%3, (leader+2)%3
	id := f.running[stopped].server.Server.MemberID()
	f.stop(stopped)
	finish := f.write(leader, follower)
	server := f.running[leader].server.Server
	for range 3 {
		moving, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if err := server.MoveLeader(moving, uint64(server.MemberID()), uint64(id)); err == nil {
			t.Error("the leadership moved to a member that has stopped")
		}
		cancel()
	}
	if err := finish(); err != nil {
		t.Error(err)
	}
}

// move moves the leadership.
func (f *fleet) move(from, to int) error {
	moving, cancel := context.WithTimeout(f.t.Context(), 20*time.Second)
	defer cancel()
	server := f.running[from].server.Server
	return server.MoveLeader(moving, uint64(server.MemberID()), uint64(f.running[to].server.Server.MemberID()))
}

// write writes to some members at the same time, each key once, until the returned function is called. That returns an error if a write
// failed, was applied twice or was lost: if many writes that the same member got after its retry was due ended before it. A slow machine
// delays all of them.
func (f *fleet) write(members ...int) (finish func() error) {
	const (
		writers    = 4
		overtaking = 100
	)
	ctx, stop := context.WithCancel(f.t.Context())
	f.t.Cleanup(stop)
	var running errgroup.Group
	for _, n := range members {
		client := open(f.t, f.running[n])
		var mu sync.Mutex
		var ended []time.Time // the times at which the writes began that have ended
		for w := range writers {
			running.Go(func() error {
				for i := 0; ctx.Err() == nil; i++ {
					key, began := fmt.Sprintf("/%d/%d/%d", n, w, i), time.Now()
					response, err := client.Txn(context.WithoutCancel(ctx)).If(clientv3.Compare(clientv3.ModRevision(key), "=", 0)).
						Then(clientv3.OpPut(key, "value")).Else(clientv3.OpGet(key)).Commit()
					took := time.Since(began).Round(time.Millisecond)
					if err != nil {
						return fmt.Errorf("the write of '%s' failed after %s: %w", key, took, err)
					}
					if !response.Succeeded {
						return fmt.Errorf("'%s' existed before it was written", key)
					}
					mu.Lock()
					overtook := 0
					for _, other := range ended {
						if other.Sub(began) > lostAfter+time.Second {
							overtook++
						}
					}
					ended = append(ended, began)
					mu.Unlock()
					if overtook > overtaking {
						return fmt.Errorf("the write of '%s' took %s, and %d later ones ended before it", key, took, overtook)
					}
				}
				return nil
			})
		}
	}
	return func() error {
		stop()
		return running.Wait()
	}
}

// leader returns the member that leads the cluster.
func (f *fleet) leader() int {
	f.t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		for n, e := range f.running {
			if e != nil && e.server.Server.Leader() == e.server.Server.MemberID() {
				return n
			}
		}
		<-time.After(10 * time.Millisecond)
	}
	f.t.Fatal("the cluster has no leader")
	return 0
}

// TestRetry checks when a write is retried, and which of the outcomes is returned.
func TestRetry(t *testing.T) {
	t.Parallel()
	// step is the outcome of an attempt and the time after which it arrives.
	type step struct {
		after time.Duration
		outcome
	}
	var (
		applied  = outcome{response: &pb.TxnResponse{Succeeded: true}}
		unmet    = outcome{response: &pb.TxnResponse{}}
		timedOut = outcome{err: status.Error(codes.Unavailable, "etcdserver: request timed out")}
		full     = outcome{err: status.Error(codes.ResourceExhausted, "etcdserver: mvcc: database space exceeded")}
		dropped  = outcome{err: status.Error(codes.Unknown, raft.ErrProposalDropped.Error())}
	)
	const never = time.Hour
	tests := map[string]struct {
		// elections are the times at which leaders are elected, steps the attempts.
		elections []time.Duration
		steps     []step
		want      outcome
		took      time.Duration
	}{
		"no election":                           {nil, []step{{time.Second, applied}}, applied, time.Second},
		"no election, the condition is not met": {nil, []step{{time.Second, unmet}}, unmet, time.Second},
		"no election, rejected":                 {nil, []step{{0, full}}, full, 0},
		"no election, lost":                     {nil, []step{{never, timedOut}, {0, applied}}, applied, 3 * time.Second},
		"no election, slow":                     {nil, []step{{3100 * time.Millisecond, applied}, {time.Second, unmet}}, applied, 3100 * time.Millisecond},
		"no election, lost twice":               {nil, []step{{never, timedOut}, {never, timedOut}, {0, applied}}, applied, 6 * time.Second},
		"no election, timeout":                  {nil, slices.Repeat([]step{{9 * time.Second, timedOut}}, 4), timedOut, 18 * time.Second},
		"committed by the new leader":           {[]time.Duration{time.Second}, []step{{1100 * time.Millisecond, applied}}, applied, 1100 * time.Millisecond},
		"lost":                                  {[]time.Duration{time.Second}, []step{{never, timedOut}, {0, applied}}, applied, 1200 * time.Millisecond},
		"lost twice":                            {[]time.Duration{time.Second, 2 * time.Second}, []step{{never, timedOut}, {never, timedOut}, {0, applied}}, applied, 2200 * time.Millisecond},
		"lost, the condition is not met":        {[]time.Duration{time.Second}, []step{{never, timedOut}, {0, unmet}}, unmet, 2200 * time.Millisecond},
		"applied, and the retry is not":         {[]time.Duration{time.Second}, []step{{1210 * time.Millisecond, applied}, {0, unmet}}, applied, 1210 * time.Millisecond},
		"the retry is applied first":            {[]time.Duration{time.Second}, []step{{1210 * time.Millisecond, unmet}, {20 * time.Millisecond, applied}}, applied, 1220 * time.Millisecond},
		"none is applied":                       {[]time.Duration{time.Second}, []step{{1300 * time.Millisecond, unmet}, {0, unmet}}, unmet, 1300 * time.Millisecond},
		"both time out":                         {[]time.Duration{time.Second}, slices.Repeat([]step{{9 * time.Second, timedOut}}, 5), timedOut, 18 * time.Second},
		"rejected during a transfer":            {nil, []step{{0, dropped}, {0, dropped}, {0, applied}}, applied, 400 * time.Millisecond},
		"rejected during a transfer and after":  {nil, []step{{0, dropped}, {0, full}}, full, 200 * time.Millisecond},
		"rejected for ever":                     {nil, append([]step{{0, dropped}}, slices.Repeat([]step{{11 * time.Second, dropped}}, 4)...), dropped, 20 * time.Second},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began, elections := time.Now(), test.elections
				changed := func() <-chan struct{} {
					elected := make(chan struct{})
					if len(elections) > 0 {
						time.AfterFunc(time.Until(began.Add(elections[0])), func() { close(elected) })
						elections = elections[1:]
					}
					return elected
				}
				starting := make(chan step, len(test.steps))
				for _, s := range test.steps {
					starting <- s
				}
				response, err := retry(t.Context(), changed, func(ctx context.Context) outcome {
					s := <-starting
					select {
					case <-time.After(s.after):
						return s.outcome
					case <-ctx.Done():
						return outcome{err: ctx.Err()}
					}
				})
				if took := time.Since(began); response != test.want.response || !errors.Is(err, test.want.err) || took != test.took {
					t.Errorf("got %v, %v after %s, want %v, %v after %s", response, err, took, test.want.response, test.want.err, test.took)
				}
				if len(starting) > 0 {
					t.Errorf("%d attempts fewer than %d", len(starting), len(test.steps))
				}
			})
		})
	}
}

// TestAppliedOnce checks which transactions are retried.
func TestAppliedOnce(t *testing.T) {
	t.Parallel()
	modified := func(key string, result pb.Compare_CompareResult) *pb.Compare {
		return &pb.Compare{Key: []byte(key), Target: pb.Compare_MOD, Result: result}
	}
	put := func(key string) *pb.RequestOp {
		return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{Key: []byte(key)}}}
	}
	get := &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte("/a")}}}
	remove := &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{Key: []byte("/a")}}}
	tests := map[string]struct {
		compare       *pb.Compare
		success, fail *pb.RequestOp
		want          bool
	}{
		"create or update":           {modified("/a", pb.Compare_EQUAL), put("/a"), get, true},
		"delete":                     {modified("/a", pb.Compare_EQUAL), remove, get, true},
		"of a version":               {&pb.Compare{Key: []byte("/a"), Target: pb.Compare_VERSION}, put("/a"), get, true},
		"of a value":                 {&pb.Compare{Key: []byte("/a"), Target: pb.Compare_VALUE}, put("/a"), get, false},
		"of an older revision":       {modified("/a", pb.Compare_LESS), put("/a"), get, false},
		"of another key":             {modified("/b", pb.Compare_EQUAL), put("/a"), get, false},
		"of a range of keys":         {&pb.Compare{Key: []byte("/a"), RangeEnd: []byte("/b"), Target: pb.Compare_MOD}, put("/a"), get, false},
		"a write if it is not met":   {modified("/a", pb.Compare_EQUAL), put("/a"), put("/b"), false},
		"a request that only reads":  {modified("/a", pb.Compare_EQUAL), get, get, false},
		"a write without conditions": {nil, put("/a"), get, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			request := &pb.TxnRequest{Success: []*pb.RequestOp{test.success}, Failure: []*pb.RequestOp{test.fail}}
			if test.compare != nil {
				request.Compare = append(request.Compare, test.compare)
			}
			if got := appliedOnce(request); got != test.want {
				t.Errorf("got %t, want %t", got, test.want)
			}
		})
	}
}
