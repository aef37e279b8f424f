package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/testr"
	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/knative-apiserver/knative-apiserver/test/natstest"
	"github.com/knative-apiserver/knative-apiserver/test/port"
)

// memory is a Record in memory. While err is set, it fails with err.
type memory struct {
	mu    sync.Mutex
	state State
	err   error
}

func (r *memory) Update(_ context.Context, change func(*State)) (State, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return State{}, r.err
	}
	state := r.state
	state.Joined = slices.Clone(r.state.Joined)
	change(&state)
	r.state = state
	return state, nil
}

func (r *memory) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

func (r *memory) get() State {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state
}

// fleet are the members of a test; options names them by number.
type fleet struct {
	t       *testing.T
	record  *memory
	options []MemberOptions
	running []*Embedded
}

func newFleet(t *testing.T, n int) *fleet {
	t.Helper()
	ca, cert, key := natstest.Certificates(t)
	f := &fleet{t: t, record: &memory{}, running: make([]*Embedded, n)}
	logger := logr.Discard()
	if testing.Verbose() {
		logger = testr.New(t)
	}
	for i := range n {
		peer, client := address(t), address(t)
		f.options = append(f.options, MemberOptions{
			Dir: t.TempDir(), Name: "member-" + strconv.Itoa(i), PeerAddress: peer, Listen: peer, ListenClient: client,
			TLS:    TLSFiles{CertFile: cert, KeyFile: key, CAFile: ca},
			Record: f.record, Timeout: 5 * time.Minute, Logger: logger,
		})
	}
	t.Cleanup(func() {
		for i := range f.running {
			f.stop(i)
		}
	})
	return f
}

func address(t *testing.T) string {
	t.Helper()
	p, err := port.Stable()
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(p))
}

// start starts members concurrently and waits for all of them.
func (f *fleet) start(members ...int) {
	f.t.Helper()
	errs := make([]error, len(members))
	var wg sync.WaitGroup
	for i, n := range members {
		wg.Go(func() { f.running[n], errs[i] = StartMember(f.t.Context(), f.options[n]) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fleet) stop(members ...int) {
	for _, n := range members {
		if f.running[n] != nil {
			f.running[n].Stop()
			f.running[n] = nil
		}
	}
}

// lose deletes the data of a stopped member.
func (f *fleet) lose(n int) {
	f.t.Helper()
	if err := os.RemoveAll(f.options[n].Dir); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fleet) put(n int, key string) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), time.Minute)
	defer cancel()
	// With a condition, as all writes of the API have: the member repeats the write if a change of leaders loses it.
	_, err := open(f.t, f.running[n]).Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, "value")).Commit()
	if err != nil {
		f.t.Fatalf("writing '%s' through member %d: %v", key, n, err)
	}
}

// holds fails the test unless a member has the keys.
func (f *fleet) holds(n int, keys ...string) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), time.Minute)
	defer cancel()
	got, err := open(f.t, f.running[n]).Get(ctx, "", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		f.t.Fatalf("reading from member %d: %v", n, err)
	}
	var found []string
	for _, kv := range got.Kvs {
		found = append(found, string(kv.Key))
	}
	if diff := cmp.Diff(keys, found); diff != "" {
		f.t.Errorf("keys of member %d (-want +got): %s", n, diff)
	}
}

// voters fails the test unless all members are voting members of one cluster of that size, and recorded.
func (f *fleet) voters(want int) {
	f.t.Helper()
	for i, e := range f.running {
		if e == nil {
			continue
		}
		// A member applies the promotion of another one later than that one. A slow disk causes an election at any time.
		err := votes(f.t.Context(), e, want)
		for end := time.Now().Add(time.Minute); err != nil && time.Now().Before(end); err = votes(f.t.Context(), e, want) {
			<-time.After(50 * time.Millisecond)
		}
		if err != nil {
			f.t.Errorf("member %d: %v", i, err)
		}
	}
	if got := len(f.record.get().Joined); got != want {
		f.t.Errorf("%d members are recorded, want %d", got, want)
	}
}

// votes returns an error unless a member is healthy and knows a number of members, all of them voting.
func votes(ctx context.Context, e *Embedded, want int) error {
	members := e.server.Server.Cluster().Members()
	voters := 0
	for _, member := range members {
		if !member.IsLearner {
			voters++
		}
	}
	if len(members) != want || voters != want {
		return fmt.Errorf("it knows %d members, %d of them voting, want %d", len(members), voters, want)
	}
	return e.Health(ctx)
}

// Members that start concurrently create one cluster, in any order.
func TestMembersStartedAtOnce(t *testing.T) {
	for range 2 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, 3)
			f.start(0, 1, 2)
			f.put(0, "a")
			f.put(1, "b")
			f.holds(2, "a", "b")
			f.stop(0)
			f.put(2, "c")
			f.start(0)
			f.holds(0, "a", "b", "c")
			f.voters(3)
		})
	}
}

// A single member grows to three. Any of them, also the first, may lose its data, and all may be stopped.
func TestMemberLosesItsData(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3)
	f.start(0)
	f.voters(1)
	f.put(0, "a")
	f.start(1)
	f.start(2)
	f.put(2, "b")
	for _, n := range []int{0, 2} {
		f.stop(n)
		f.put((n+1)%3, "c"+strconv.Itoa(n))
		f.lose(n)
		f.start(n)
	}
	f.holds(0, "a", "b", "c0", "c2")
	f.stop(0, 1, 2)
	f.start(0, 1, 2)
	f.holds(1, "a", "b", "c0", "c2")
	f.voters(3)
}

// A member that lost its data starts although the cluster has many entries and no client writes more.
func TestMemberOfIdleCluster(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3)
	f.start(0, 1, 2)
	// etcd rejects requests of a member that seems to be 5,000 entries behind.
	const entries, writers = 5100, 64
	client := open(t, f.running[0])
	var running sync.WaitGroup
	for range writers {
		running.Go(func() {
			for left := entries/writers + 1; left > 0 && t.Context().Err() == nil; {
				// A change of leaders loses some.
				if _, err := client.Put(t.Context(), "a", "value"); err == nil {
					left--
				}
			}
		})
	}
	running.Wait()
	f.stop(2)
	f.lose(2)
	f.start(2)
	f.voters(3)
	f.holds(2, "a")
}

// A member that is killed while joining the cluster joins with the next start.
func TestMemberKilledWhileJoining(t *testing.T) {
	for name, kill := range map[string]func(*testing.T, *fleet){
		"asked to join": func(t *testing.T, f *fleet) {
			m, err := newMember(f.options[1])
			if err != nil {
				t.Fatal(err)
			}
			// A request may time out on a busy machine.
			_, err = m.join(t.Context(), f.record.get())
			for end := time.Now().Add(time.Minute); err != nil && time.Now().Before(end); {
				<-time.After(retryEvery)
				_, err = m.join(t.Context(), f.record.get())
			}
			if err != nil {
				t.Fatal(err)
			}
		},
		"started, not promoted": func(t *testing.T, f *fleet) {
			f.halfway(1)
		},
		"started, not promoted, data lost": func(t *testing.T, f *fleet) {
			f.halfway(1)
			f.lose(1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, 2)
			f.start(0)
			f.put(0, "a")
			kill(t, f)
			f.start(1)
			f.holds(1, "a")
			f.voters(2)
		})
	}
}

// halfway starts joining a member, and stops it before it is promoted.
func (f *fleet) halfway(n int) {
	t := f.t
	t.Helper()
	m, err := newMember(f.options[n])
	if err != nil {
		t.Fatal(err)
	}
	e := &Embedded{}
	defer e.Stop()
	if err := e.open(m.Dir); err != nil {
		t.Fatal(err)
	}
	// It fails at the record. Failures before that are retried, as by StartMember.
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	m.Record = &refusing{memory: f.record, refused: cancel}
	err = m.start(ctx, e)
	for err != nil && !errors.Is(err, errRefused) && ctx.Err() == nil {
		e.halt()
		err = m.start(ctx, e)
	}
	if !errors.Is(err, errRefused) {
		t.Fatalf("starting without a record to write: %v, want errRefused", err)
	}
	if !e.server.Server.IsLearner() {
		t.Fatal("the member counts before it is recorded")
	}
}

var errRefused = errors.New("refused")

// refusing is a record that rejects writes.
type refusing struct {
	*memory
	// refused is called when a write is rejected.
	refused func()
}

func (r *refusing) Update(ctx context.Context, change func(*State)) (State, error) {
	before := r.get()
	after := before
	after.Joined = slices.Clone(before.Joined)
	change(&after)
	if !after.equal(before) {
		r.refused()
		return State{}, errRefused
	}
	return r.memory.Update(ctx, func(*State) {})
}

// The bootstrap member creates a new cluster if it has lost its data and no other member has a copy. A member that was joining
// the first cluster joins the second.
func TestClusterRecreated(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2)
	f.start(0)
	first := f.record.get().Cluster
	f.halfway(1)
	f.stop(0)
	f.lose(0)
	f.start(0)
	if second := f.record.get().Cluster; second == first {
		t.Errorf("the recreated cluster has the ID %s of the first", first)
	}
	f.put(0, "a")
	f.start(1)
	f.holds(1, "a")
	f.voters(2)
}

// Data takes precedence over the record: a missing record is written again, and a record of another cluster is an error.
func TestRecordLostOrOther(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2)
	f.start(0, 1)
	want := f.record.get()
	f.stop(0, 1)
	f.record.state = State{}
	f.start(0, 1)
	got := f.record.get()
	if got.Cluster != want.Cluster || len(got.Joined) != 2 || got.Bootstrap.Name == "" {
		t.Errorf("the record is %+v after it was lost, was %+v", got, want)
	}

	f.stop(0, 1)
	f.record.fail(errors.New("the host API server is down"))
	f.start(0, 1)
	f.put(1, "a")
	f.record.fail(nil)

	f.stop(0)
	f.record.state = State{Cluster: "1", Bootstrap: Peer{Name: "x"}}
	if e, err := StartMember(t.Context(), f.options[0]); !errors.Is(err, ErrOtherCluster) {
		if err == nil {
			e.Stop()
		}
		t.Errorf("starting with the record of another cluster: %v, want ErrOtherCluster", err)
	}
}

// When two of three members lost their data, a member reports the missing quorum and creates no cluster.
func TestQuorumLost(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3)
	f.start(0, 1, 2)
	f.stop(0, 1)
	f.lose(0)
	f.lose(1)
	for _, n := range []int{0, 1} {
		o := f.options[n]
		o.Timeout = 2 * time.Second
		e, err := StartMember(t.Context(), o)
		if err == nil {
			e.Stop()
		}
		if !errors.Is(err, ErrNoQuorum) || !strings.Contains(err.Error(), "docs/operations.md") {
			t.Errorf("starting member %d: %v, want ErrNoQuorum and a page of the documentation", n, err)
		}
	}
	deadline := time.Now().Add(time.Minute)
	for err := error(nil); !errors.Is(err, ErrNoQuorum); err = f.running[2].Health(t.Context()) {
		if time.Now().After(deadline) {
			t.Fatalf("health of the last member: %v, want ErrNoQuorum", err)
		}
		<-time.After(50 * time.Millisecond)
	}
	f.stop(2)
	o := f.options[2]
	o.Timeout = 2 * time.Second
	if e, err := StartMember(t.Context(), o); !errors.Is(err, ErrNoQuorum) {
		if err == nil {
			e.Stop()
		}
		t.Errorf("starting the last member: %v, want ErrNoQuorum", err)
	}
}

// The data of a standalone installation continues as the data of a member.
func TestStandaloneBecomesMember(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2)
	e, err := Start(f.options[0].Dir)
	if err != nil {
		t.Fatal(err)
	}
	f.running[0] = e
	f.put(0, "a")
	f.stop(0)
	f.start(0)
	f.start(1)
	f.holds(1, "a")
	f.voters(2)
}

// A client without a certificate of the members' authority can neither join nor read.
func TestMembersAuthenticate(t *testing.T) {
	t.Parallel()
	f, strangers := newFleet(t, 1), newFleet(t, 1)
	f.start(0)
	f.put(0, "a")
	o := strangers.options[0]
	o.Record, o.Timeout = f.record, 3*time.Second
	o.Name = "stranger"
	if e, err := StartMember(t.Context(), o); err == nil {
		e.Stop()
		t.Error("a member with a certificate of another authority joined")
	}
	f.voters(1)
}

// A member restored from a snapshot has the data of the snapshot under later revisions, and others join it.
func TestSnapshotRestore(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2)
	f.start(0)
	f.put(0, "a")
	var content bytes.Buffer
	if err := f.running[0].Snapshot(t.Context(), &content); err != nil {
		t.Fatal(err)
	}
	f.put(0, "later")
	f.stop(0)
	file := filepath.Join(t.TempDir(), "snapshot")
	if err := os.WriteFile(file, content.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	o := f.options[0]
	options := RestoreOptions{Dir: o.Dir, Name: o.Name, PeerURL: "https://" + o.PeerAddress}
	began := time.Now().UnixMicro()
	if _, err := Restore(file, options); !errors.Is(err, ErrHasData) {
		t.Errorf("restoring over existing data: %v, want ErrHasData", err)
	}
	options.Replace = true
	content.Bytes()[content.Len()/2]++
	damaged := filepath.Join(t.TempDir(), "damaged")
	if err := os.WriteFile(damaged, content.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Restore(damaged, options); err == nil {
		t.Error("a damaged snapshot was restored")
	}
	if found, err := hasLog(o.Dir); err != nil || !found {
		t.Errorf("after a failed restore data exists: %t, %v, want the previous data", found, err)
	}
	aside, err := Restore(file, options)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(aside, "member", "snap", "db")); err != nil {
		t.Errorf("the previous data is not kept: %v", err)
	}
	f.record.state = State{}
	f.start(0)
	f.start(1)
	f.holds(1, "a")
	f.voters(2)
	got, err := open(t, f.running[1]).Get(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	first := got.Header.Revision
	if first < began {
		t.Errorf("the revision is %d after a restore, want above %d", first, began)
	}

	// No revision of the first restore is used after another one of the same snapshot.
	f.put(1, "later")
	f.stop(0, 1)
	if _, err := Restore(file, options); err != nil {
		t.Fatal(err)
	}
	if _, err := Discard(f.options[1].Dir); err != nil {
		t.Fatal(err)
	}
	f.record.state = State{}
	f.start(0)
	if got, err = open(t, f.running[0]).Get(t.Context(), "later"); err != nil {
		t.Fatal(err)
	}
	if len(got.Kvs) != 0 || got.Header.Revision <= first+1 {
		t.Errorf("the revision is %d after another restore, want above %d", got.Header.Revision, first+1)
	}
}

// TestRevisionBump restores older and newer snapshots than the one before.
func TestRevisionBump(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := now.UnixMicro()
	for name, test := range map[string]struct{ latest, want int64 }{
		"the first restore":             {1000, at},
		"a snapshot after a restore":    {at - 50_000_000, at},
		"a snapshot of the same second": {at - 1_000, at},
		"a snapshot from the future":    {at + 60_000_000, at + 60_000_000 + wrongClockBump},
	} {
		if got := test.latest + int64(revisionBump(test.latest, now)); got != test.want {
			t.Errorf("%s: the revision is %d, want %d", name, got, test.want)
		}
	}
}

// No acknowledged write is lost when a member stops while others accept writes.
func TestMemberStoppedUnderWrites(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3)
	f.start(0, 1, 2)
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	var stored []string
	const enough = 10
	acknowledged := make(chan struct{})
	var wg sync.WaitGroup
	for n := range 2 {
		client := open(t, f.running[n])
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				key := fmt.Sprintf("%d-%06d", n, i)
				if _, err := client.Put(ctx, key, ""); err == nil {
					mu.Lock()
					if stored = append(stored, key); len(stored) == enough {
						close(acknowledged)
					}
					mu.Unlock()
				}
			}
		})
	}
	f.stop(2)
	f.lose(2)
	f.start(2)
	select {
	case <-acknowledged:
	case <-t.Context().Done():
	}
	cancel()
	wg.Wait()
	f.stop(0)
	got, err := open(t, f.running[2]).Get(t.Context(), "", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, kv := range got.Kvs {
		found[string(kv.Key)] = true
	}
	for _, key := range stored {
		if !found[key] {
			t.Errorf("'%s' was acknowledged and is lost", key)
		}
	}
}
