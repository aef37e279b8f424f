package etcd

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Another process finds the member on a directory only while it runs.
func TestConnect(t *testing.T) {
	dir := t.TempDir()
	connected := func() error {
		running, err := Connect(t.Context(), dir)
		if err == nil {
			err = running.Snapshot(t.Context(), &bytes.Buffer{})
			running.Close()
		}
		return err
	}
	if err := connected(); !errors.Is(err, ErrNotRunning) {
		t.Errorf("connecting to a stopped member: %v, want ErrNotRunning", err)
	}
	e, err := Start(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := connected(); err != nil {
		t.Error(err)
	}
	note, err := os.ReadFile(endpointFile(dir))
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(endpointFile(dir))
	if err != nil {
		t.Fatal(err)
	}
	if perm := info.Mode().Perm(); perm != 0o600 {
		t.Errorf("the note of the endpoint has mode %o, want 600", perm)
	}
	if _, err := Discard(dir); !errors.Is(err, ErrInUse) {
		t.Errorf("discarding data in use: %v, want ErrInUse", err)
	}
	e.Stop()
	if err := connected(); !errors.Is(err, ErrNotRunning) {
		t.Errorf("connecting after the end: %v, want ErrNotRunning", err)
	}
	// The endpoint file of a killed member remains.
	if err := os.WriteFile(endpointFile(dir), note, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := connected(); !errors.Is(err, ErrNotRunning) {
		t.Errorf("connecting after a crash: %v, want ErrNotRunning", err)
	}
}

// A snapshot can be taken from the remaining members of a cluster, also without a quorum.
func TestSnapshotWithoutQuorum(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2)
	f.start(0, 1)
	f.put(0, "a")
	f.stop(1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	running, err := Connect(ctx, f.options[0].Dir)
	if err != nil {
		t.Fatal(err)
	}
	defer running.Close()
	var content bytes.Buffer
	if err := running.Snapshot(ctx, &content); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "snapshot")
	if err := os.WriteFile(file, content.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	f.stop(0)
	o := f.options[0]
	if _, err := Restore(file, RestoreOptions{Dir: o.Dir, Name: o.Name, PeerURL: "https://" + o.PeerAddress, Replace: true}); err != nil {
		t.Fatal(err)
	}
	f.record.state = State{Bootstrap: Peer{
		Name: o.Name, PeerURL: "https://" + o.PeerAddress, ClientURL: "https://" + o.ListenClient,
	}}
	if _, err := Discard(f.options[1].Dir); err != nil {
		t.Fatal(err)
	}
	f.start(0, 1)
	f.holds(1, "a")
	f.voters(2)
}

// SkipHash restores the database file of a stopped member.
func TestRestoreWithoutHash(t *testing.T) {
	dir, restored := t.TempDir(), t.TempDir()
	e, err := Start(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := open(t, e).Put(t.Context(), "key", "value"); err != nil {
		t.Fatal(err)
	}
	e.Stop()
	file := filepath.Join(dataDir(dir), "member", "snap", "db")
	options := RestoreOptions{Dir: restored, Name: "knative-apiserver", PeerURL: "http://localhost:0"}
	if _, err := Restore(file, options); err == nil {
		t.Error("a database without a checksum was restored without SkipHash")
	}
	options.SkipHash = true
	if aside, err := Restore(file, options); err != nil || aside != "" {
		t.Fatalf("restoring into an empty directory: %q, %v", aside, err)
	}
	if e, err = Start(restored); err != nil {
		t.Fatal(err)
	}
	defer e.Stop()
	got, err := open(t, e).Get(t.Context(), "key")
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Kvs) != 1 {
		t.Errorf("the restored database has %d of 1 key", len(got.Kvs))
	}
}

// A full database accepts writes again after space is freed and it is defragmented.
func TestDefragment(t *testing.T) {
	dir := t.TempDir()
	e, err := Start(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	client := open(t, e)
	var last *clientv3.PutResponse
	for range 50 {
		if last, err = client.Put(ctx, "key", strings.Repeat("x", 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := client.Compact(ctx, last.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	// etcd raises the alarm when the quota is reached. The other member left the cluster with its alarm.
	server := e.server.Server
	for _, member := range []uint64{uint64(server.MemberID()), 42} {
		alarm := &etcdserverpb.AlarmRequest{
			Action: etcdserverpb.AlarmRequest_ACTIVATE, MemberID: member, Alarm: etcdserverpb.AlarmType_NOSPACE,
		}
		if _, err := server.Alarm(ctx, alarm); err != nil {
			t.Fatal(err)
		}
	}
	full := filepath.Join(t.TempDir(), "snapshot")
	file, err := os.Create(full)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(e.Snapshot(ctx, file), file.Close()); err != nil {
		t.Fatal(err)
	}
	if err := e.Health(ctx); !errors.Is(err, ErrNoSpace) {
		t.Fatalf("health is %v, want ErrNoSpace", err)
	}
	running, err := Connect(ctx, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer running.Close()
	before, after, err := running.Defragment(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if after >= before/2 {
		t.Errorf("the database had %d bytes and has %d", before, after)
	}
	if err := e.Health(ctx); err != nil {
		t.Error(err)
	}
	if _, err := client.Put(ctx, "key", "value"); err != nil {
		t.Error(err)
	}

	// A snapshot of the full database is restored without its alarms, and without its free space.
	restored := t.TempDir()
	if _, err := Restore(full, RestoreOptions{Dir: restored, Name: "knative-apiserver", PeerURL: "http://localhost:0"}); err != nil {
		t.Fatal(err)
	}
	reopened, err := Start(restored)
	if err != nil {
		t.Fatal(err)
	}
	defer reopened.Stop()
	if err := reopened.Health(ctx); err != nil {
		t.Errorf("health after a restore: %v", err)
	}
	if _, err := open(t, reopened).Put(ctx, "key", "value"); err != nil {
		t.Errorf("writing after a restore: %v", err)
	}
	if size := reopened.server.Server.Backend().Size(); size >= before/2 {
		t.Errorf("the database had %d bytes and has %d after a restore", before, size)
	}
}
