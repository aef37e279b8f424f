package etcd

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
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

// wrongClockBump is the increase of revisions by a restore if the clock is wrong: more than the writes in ten days at a thousand a second.
const wrongClockBump = 1_000_000_000

// revisionBump returns the increase of revisions by a restore at a time, for a database with a latest revision. They continue from the time in
// microseconds since 1970. Without a million writes a second, this exceeds all revisions that clients observed, after the snapshot was taken and after
// earlier restores, also of other snapshots. A client that watches continues from the revision that it observed last: if another history
// had this revision too, it would miss changes without an error.
func revisionBump(latest int64, now time.Time) uint64 {
	if bump := now.UnixMicro() - latest; bump > 0 {
		return uint64(bump)
	}
	return wrongClockBump
}

// ErrHasData is returned if the data directory contains data and replacing it was not requested.
var ErrHasData = errors.New("data directory already contains data")

var errDamaged = errors.New("the checksum is missing or wrong: the file is damaged, or no snapshot")

// Snapshot writes the whole current database, with a checksum, in the format that Restore reads.
func (e *Embedded) Snapshot(ctx context.Context, w io.Writer) error {
	running, err := connect(e.Endpoints()[0])
	if err != nil {
		return err
	}
	defer running.Close()
	return running.Snapshot(ctx, w)
}

// RestoreOptions configure a restore.
type RestoreOptions struct {
	// Dir is the data directory. It is created if it does not exist.
	Dir string
	// Name and PeerURL are the name and address of the only member of the new cluster.
	Name, PeerURL string
	// Replace moves existing data aside.
	Replace bool
	// SkipHash accepts a database without a checksum, such as a copy of the file of a stopped member.
	SkipHash bool
}

// Restore creates the data of a cluster with one member from a file that Snapshot wrote. Clients observe a jump of the
// revisions and relist. It returns the directory that existing data was moved to, if any. If it fails, nothing has changed;
// the error wraps ErrInUse while a process runs on the directory, and ErrHasData if the directory contains data and Replace
// is false.
func Restore(snapshotFile string, o RestoreOptions) (aside string, err error) {
	unlock, err := lock(o.Dir)
	if err != nil {
		return "", err
	}
	defer unlock()
	if found, err := hasLog(o.Dir); err != nil {
		return "", fmt.Errorf("restore etcd: %w", err)
	} else if found && !o.Replace {
		return "", fmt.Errorf("%w: %s", ErrHasData, o.Dir)
	}
	latest, err := latestRevision(snapshotFile, o.SkipHash)
	if err != nil {
		return "", fmt.Errorf("restore etcd from %s: %w", snapshotFile, err)
	}
	// Existing data is moved when the new data is complete.
	restored, err := os.MkdirTemp(o.Dir, "etcd-restored-")
	if err != nil {
		return "", fmt.Errorf("restore etcd: %w", err)
	}
	defer os.RemoveAll(restored)
	err = snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: snapshotFile, SkipHashCheck: o.SkipHash, OutputDataDir: restored,
		Name: o.Name, PeerURLs: []string{o.PeerURL}, InitialCluster: o.Name + "=" + o.PeerURL,
		// A new cluster ID, so that members of the previous cluster are not accepted.
		InitialClusterToken: rand.Text(),
		RevisionBump:        revisionBump(latest, time.Now()), MarkCompacted: true,
	})
	if err != nil {
		return "", fmt.Errorf("restore etcd from %s: %w", snapshotFile, err)
	}
	if err := tidy(filepath.Join(restored, "member", "snap", "db")); err != nil {
		return "", fmt.Errorf("tidy restored database: %w", err)
	}
	if aside, err = moveAside(o.Dir); err != nil {
		return "", err
	}
	if err := os.Rename(restored, dataDir(o.Dir)); err != nil {
		return aside, fmt.Errorf("restore etcd: %w", err)
	}
	return aside, nil
}

// latestRevision returns the latest revision in a snapshot file. Reading a damaged database may end the process, so it fails before unless skipHash is true.
func latestRevision(snapshotFile string, skipHash bool) (int64, error) {
	if !skipHash {
		if err := checkHash(snapshotFile); err != nil {
			return 0, err
		}
	}
	status, err := snapshot.NewV3(zap.NewNop()).Status(snapshotFile)
	return status.Revision, err
}

// checkHash fails unless a file ends with the SHA-256 of the rest, as snapshots do.
func checkHash(snapshotFile string) error {
	file, err := os.Open(snapshotFile)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	hash, want := sha256.New(), make([]byte, sha256.Size)
	if info.Size() < sha256.Size {
		return errDamaged
	}
	if _, err := io.CopyN(hash, file, info.Size()-sha256.Size); err != nil {
		return err
	}
	if _, err := io.ReadFull(file, want); err != nil {
		return err
	}
	if !bytes.Equal(hash.Sum(nil), want) {
		return errDamaged
	}
	return nil
}

// tidy clears the alarms of a database, which refer to members that no longer exist, and defragments it.
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

// Discard moves the data in dir aside, so that the member joins its cluster without data. It returns the directory that the
// data was moved to, if any, and fails with ErrInUse while a process runs on dir.
func Discard(dir string) (aside string, err error) {
	unlock, err := lock(dir)
	if err != nil {
		return "", err
	}
	defer unlock()
	return moveAside(dir)
}

// lock creates dir if necessary, and prevents members from starting there until unlock is called.
func lock(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create data directory: %w", err)
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

// moveAside renames the data directory in dir, adding the time, and returns its new path. The directory may be missing.
func moveAside(dir string) (aside string, err error) {
	aside = dataDir(dir) + "." + time.Now().UTC().Format("20060102T150405.000Z")
	if err := remove((&member{MemberOptions: MemberOptions{Dir: dir}}).joining()); err != nil {
		return "", fmt.Errorf("move etcd data aside: %w", err)
	}
	if err := os.Rename(dataDir(dir), aside); errors.Is(err, os.ErrNotExist) {
		return "", nil
	} else if err != nil {
		return "", fmt.Errorf("move etcd data aside: %w", err)
	}
	return aside, nil
}
