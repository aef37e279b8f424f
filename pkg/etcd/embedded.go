// Package etcd runs an etcd inside this process, for installations that bring none.
package etcd

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/knative-apiserver/knative-apiserver/pkg/lockfile"
)

// Embedded is a running etcd of one member.
type Embedded struct {
	server    *embed.Etcd
	lock      *fileutil.LockedFile
	socketDir string
	logLevel  zap.AtomicLevel
	// stopReserve ends keepReserve.
	stopReserve chan struct{}
}

const (
	// startTimeout bounds how long the member may take to replay its log and elect itself.
	startTimeout = time.Minute
	// quotaBytes is how large the database may grow before etcd refuses writes.
	quotaBytes = 8 << 30
)

// ErrInUse tells that another process runs on the same data directory.
var ErrInUse = errors.New("the data directory is in use by another knative-apiserver")

// Start runs etcd on the data in dir, which is made if it does not exist. Writes are synced to disk before
// they are acknowledged. It fails with ErrInUse when another process runs on dir.
func Start(dir string) (_ *Embedded, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the data directory: %w", err)
	}
	e := &Embedded{}
	defer func() {
		if err != nil {
			e.Stop()
		}
	}()
	if e.lock, err = lockfile.Acquire(filepath.Join(dir, "lock")); errors.Is(err, lockfile.ErrHeld) {
		return nil, fmt.Errorf("%w: %s", ErrInUse, dir)
	} else if err != nil {
		return nil, err
	}
	// The API server reaches etcd by a socket in a directory of our own user's: there is no port that others
	// on this machine could read or write objects by. It is not in dir because socket paths are short.
	if e.socketDir, err = os.MkdirTemp("", "knative-apiserver-"); err != nil {
		return nil, fmt.Errorf("making a directory for etcd's socket: %w", err)
	}
	client, peer := e.socket("client"), e.socket("peer")

	config := embed.NewConfig()
	config.Name = "knative-apiserver"
	config.Dir = filepath.Join(dir, "etcd")
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	config.ListenPeerUrls = []url.URL{peer}
	// A member keeps the peer address it was born with; a single member never dials it.
	config.AdvertisePeerUrls = []url.URL{{Scheme: "http", Host: "localhost:0"}}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	config.QuotaBackendBytes = quotaBytes
	// Entries that were applied are kept in memory for members that lag behind, and there are none.
	config.SnapshotCatchUpEntries = 100
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(e.logger())

	if e.server, err = embed.StartEtcd(config); err != nil {
		return nil, fmt.Errorf("starting the embedded etcd on %s: %w", config.Dir, err)
	}
	select {
	case <-e.server.Server.ReadyNotify():
		e.stopReserve = make(chan struct{})
		go keepReserve(e.stopReserve, filepath.Join(config.Dir, "member", "snap", "db"))
		return e, nil
	case err := <-e.server.Err():
		return nil, fmt.Errorf("the embedded etcd on %s failed: %w", config.Dir, err)
	case <-time.After(startTimeout):
		return nil, fmt.Errorf("the embedded etcd on %s was not ready after %s", config.Dir, startTimeout)
	}
}

// Endpoints are the addresses for etcd clients.
func (e *Embedded) Endpoints() []string {
	client := e.socket("client")
	return []string{client.String()}
}

// Stop ends etcd and frees the data directory.
func (e *Embedded) Stop() {
	if e.stopReserve != nil {
		close(e.stopReserve)
		e.stopReserve = nil
	}
	if e.server != nil {
		// It calls the end of its own listeners an error.
		e.logLevel.SetLevel(zap.FatalLevel)
		e.server.Close()
	}
	if e.socketDir != "" {
		os.RemoveAll(e.socketDir)
	}
	if e.lock != nil {
		e.lock.Close()
	}
}

// logger returns a logger of errors to standard error.
func (e *Embedded) logger() *zap.Logger {
	e.logLevel = zap.NewAtomicLevelAt(zap.ErrorLevel)
	encoder := zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig())
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(os.Stderr), e.logLevel)).Named("etcd")
}

func (e *Embedded) socket(name string) url.URL {
	return url.URL{Scheme: "unix", Path: filepath.Join(e.socketDir, name)}
}
