package etcd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.uber.org/zap"

	"github.com/knative-apiserver/knative-apiserver/pkg/lockfile"
)

// revisionBump is by how much revisions after a restore are above those of the snapshot, so that none is given twice that
// clients saw after the snapshot was taken: ten days at a thousand writes a second.
const revisionBump = 1_000_000_000

// ErrHasData says that a directory has data that was not to be replaced.
var ErrHasData = errors.New("the data directory holds data already")

// Snapshot writes the whole database as of now, with a checksum, as Restore takes it.
func (e *Embedded) Snapshot(ctx context.Context, w io.Writer) error {
	running, err := connect(e.Endpoints()[0])
	if err != nil {
		return err
	}
	defer running.Close()
	return running.Snapshot(ctx, w)
}

// RestoreOptions say what becomes of a snapshot.
type RestoreOptions struct {
	// Dir is the data directory, which is made if there is none.
	Dir string
	// Name and PeerURL are those of the only member of the new cluster.
	Name, PeerURL string
	// Replace has data that is there moved aside.
	Replace bool
	// SkipHash takes a database without a checksum, such as a copy of the file of a member that did not run.
	SkipHash bool
}

// Restore makes the data of a cluster with one member from what Snapshot wrote to a file. Clients see a jump of the
// revisions, and list again. It returns the directory that the data before is in now, if there was any. Nothing is changed
// where it fails; then the error wraps ErrInUse while a process runs on the directory, and ErrHasData if it holds data that
// is not to be replaced.
func Restore(snapshotFile string, o RestoreOptions) (aside string, err error) {
	unlock, err := lock(o.Dir)
	if err != nil {
		return "", err
	}
	defer unlock()
	if found, err := hasLog(o.Dir); err != nil {
		return "", fmt.Errorf("restoring etcd: %w", err)
	} else if found && !o.Replace {
		return "", fmt.Errorf("%w: %s", ErrHasData, o.Dir)
	}
	// What is there goes when the new data is complete.
	restored, err := os.MkdirTemp(o.Dir, "etcd-restored-")
	if err != nil {
		return "", fmt.Errorf("restoring etcd: %w", err)
	}
	defer os.RemoveAll(restored)
	err = snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: snapshotFile, SkipHashCheck: o.SkipHash, OutputDataDir: restored,
		Name: o.Name, PeerURLs: []string{o.PeerURL}, InitialCluster: o.Name + "=" + o.PeerURL,
		// A cluster of its own: members of the one that was before are not taken for its own.
		InitialClusterToken: rand.Text(),
		RevisionBump:        revisionBump, MarkCompacted: true,
	})
	if err != nil {
		return "", fmt.Errorf("restoring etcd from %s: %w", snapshotFile, err)
	}
	if err := tidy(filepath.Join(restored, "member", "snap", "db")); err != nil {
		return "", fmt.Errorf("tidy the restored database: %w", err)
	}
	if aside, err = moveAside(o.Dir); err != nil {
		return "", err
	}
	if err := os.Rename(restored, dataDir(o.Dir)); err != nil {
		return aside, fmt.Errorf("restoring etcd: %w", err)
	}
	return aside, nil
}

// tidy clears the alarms of a database, which are about members that no longer exist, and defragments it.
func tidy(db string) error {
	database := backend.NewDefaultBackend(zap.NewNop(), db)
	alarms := schema.NewAlarmBackend(zap.NewNop(), database)
	alarms.CreateAlarmBucket()
	active, err := alarms.GetAllAlarms()
	for _, alarm := range active {
		alarms.MustDeleteAlarm(alarm)
	}
	database.ForceCommit()
	if err == nil {
		err = database.Defrag()
	}
	return errors.Join(err, database.Close())
}

// Discard moves the data in dir aside, so that the member joins its cluster without any. It returns the directory that the
// data is in now, if there was any, and fails with ErrInUse while a process runs on dir.
func Discard(dir string) (aside string, err error) {
	unlock, err := lock(dir)
	if err != nil {
		return "", err
	}
	defer unlock()
	return moveAside(dir)
}

// lock makes dir if need be, and keeps members from starting there until unlock is called.
func lock(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the data directory: %w", err)
	}
	file, err := lockfile.Acquire(filepath.Join(dir, "lock"))
	if errors.Is(err, lockfile.ErrHeld) {
		return nil, fmt.Errorf("%w: %s", ErrInUse, dir)
	}
	if err != nil {
		return nil, err
	}
	return func() { file.Close() }, nil
}

// moveAside gives the data in dir another name, with the time, and returns it; there may be none.
func moveAside(dir string) (aside string, err error) {
	aside = dataDir(dir) + "." + time.Now().UTC().Format("20060102T150405.000Z")
	if err := remove((&member{MemberOptions: MemberOptions{Dir: dir}}).joining()); err != nil {
		return "", fmt.Errorf("moving etcd's data aside: %w", err)
	}
	if err := os.Rename(dataDir(dir), aside); errors.Is(err, os.ErrNotExist) {
		return "", nil
	} else if err != nil {
		return "", fmt.Errorf("moving etcd's data aside: %w", err)
	}
	return aside, nil
}
