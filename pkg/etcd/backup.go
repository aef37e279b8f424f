package etcd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
)

// revisionBump is by how much revisions after a restore are above those of the snapshot, so that none is given twice that
// clients saw after the snapshot was taken: ten days at a thousand writes a second.
const revisionBump = 1_000_000_000

// Snapshot writes the whole database as of now, with a checksum, as Restore takes it.
func (e *Embedded) Snapshot(ctx context.Context, w io.Writer) error {
	client, err := clientv3.New(clientv3.Config{Endpoints: e.Endpoints(), Logger: zap.NewNop()})
	if err != nil {
		return fmt.Errorf("connecting to the embedded etcd: %w", err)
	}
	defer client.Close()
	taken, err := client.SnapshotWithVersion(ctx)
	if err != nil {
		return fmt.Errorf("taking a snapshot of etcd: %w", err)
	}
	defer taken.Snapshot.Close()
	if _, err := io.Copy(w, taken.Snapshot); err != nil {
		return fmt.Errorf("writing a snapshot of etcd: %w", err)
	}
	return nil
}

// Restore makes the data of a cluster with one member, of which name and address are given, from what Snapshot wrote. dir
// may hold no data yet. Clients see a jump of the revisions, and list again.
func Restore(dir, snapshotFile, name, peerURL string) error {
	if found, err := hasLog(dir); err != nil || found {
		return errors.Join(fmt.Errorf("restoring etcd: %s may hold no data yet", dir), err)
	}
	if err := fileutil.TouchDirAll(zap.NewNop(), dir); err != nil {
		return fmt.Errorf("restoring etcd: %w", err)
	}
	err := snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: snapshotFile, OutputDataDir: dataDir(dir),
		Name: name, PeerURLs: []string{peerURL}, InitialCluster: name + "=" + peerURL,
		// A cluster of its own: members of the one that was before are not taken for its own.
		InitialClusterToken: rand.Text(),
		RevisionBump:        revisionBump, MarkCompacted: true,
	})
	if err != nil {
		return fmt.Errorf("restoring etcd from %s: %w", snapshotFile, err)
	}
	return nil
}
