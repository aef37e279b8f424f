package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// ErrNotRunning is returned if no member runs on a data directory.
var ErrNotRunning = errors.New("no server with an embedded etcd runs on the data directory")

// Running is a client of a member that another process of the same user runs.
type Running struct {
	endpoint string
	client   *clientv3.Client
}

// Connect returns a client of the member that runs on the data in dir. It fails with ErrNotRunning if no member runs.
func Connect(ctx context.Context, dir string) (*Running, error) {
	endpoint, err := os.ReadFile(endpointFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s", ErrNotRunning, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("find embedded etcd: %w", err)
	}
	// Dial first, because the etcd client retries forever. A server that was killed leaves its endpoint file behind.
	_, socket, _ := strings.Cut(string(endpoint), "://")
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrNotRunning, dir, err)
	}
	connection.Close()
	return connect(string(endpoint))
}

func connect(endpoint string) (*Running, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()})
	if err != nil {
		return nil, fmt.Errorf("connect to embedded etcd: %w", err)
	}
	return &Running{endpoint: endpoint, client: client}, nil
}

// Close closes the connection.
func (r *Running) Close() error { return r.client.Close() }

// Snapshot writes the whole current database, with a checksum, in the format that Restore reads. It is a copy of the member's
// own data and requires no quorum.
func (r *Running) Snapshot(ctx context.Context, w io.Writer) error {
	snapshot, err := r.client.SnapshotWithVersion(ctx)
	if err != nil {
		return fmt.Errorf("take snapshot of etcd: %w", err)
	}
	defer snapshot.Snapshot.Close()
	if _, err := io.Copy(w, snapshot.Snapshot); err != nil {
		return fmt.Errorf("write snapshot of etcd: %w", err)
	}
	return nil
}

// Defragment releases the space of deleted and compacted data, during which the member serves no requests, and clears the
// NOSPACE alarm if the database is below its quota then. It returns the sizes of the database before and after in bytes. The
// error wraps ErrNoSpace if the database is still at its quota.
func (r *Running) Defragment(ctx context.Context) (before, after int64, err error) {
	status, err := r.client.Status(ctx, r.endpoint)
	if err != nil {
		return 0, 0, fmt.Errorf("get size of etcd database: %w", err)
	}
	before = status.DbSize
	if _, err := r.client.Defragment(ctx, r.endpoint); err != nil {
		return before, before, fmt.Errorf("defragment etcd database: %w", err)
	}
	if status, err = r.client.Status(ctx, r.endpoint); err != nil {
		return before, before, fmt.Errorf("get size of etcd database: %w", err)
	}
	after = status.DbSize
	if after >= status.DbSizeQuota {
		return before, after, fmt.Errorf("%w of %d bytes: delete objects and wait for a compaction first", ErrNoSpace, status.DbSizeQuota)
	}
	if err := r.disarm(ctx, status.Header.MemberId); err != nil {
		return before, after, fmt.Errorf("clear NOSPACE alarms: %w", err)
	}
	return before, after, nil
}

// disarm clears the NOSPACE alarms of a member and of former members that left the cluster, such as members that lost their
// volume. Other members clear their own alarms when they have space.
func (r *Running) disarm(ctx context.Context, member uint64) error {
	alarms, err := r.client.AlarmList(ctx)
	if err != nil {
		return err
	}
	list, err := r.client.MemberList(ctx)
	if err != nil {
		return err
	}
	for _, alarm := range alarms.Alarms {
		other := alarm.MemberID != member &&
			slices.ContainsFunc(list.Members, func(m *etcdserverpb.Member) bool { return m.ID == alarm.MemberID })
		if other || alarm.Alarm != etcdserverpb.AlarmType_NOSPACE {
			continue
		}
		if _, err := r.client.AlarmDisarm(ctx, &clientv3.AlarmMember{MemberID: alarm.MemberID, Alarm: alarm.Alarm}); err != nil {
			return err
		}
	}
	return nil
}
