// Package etcd runs an etcd inside this process, for installations that bring none: the only member of its cluster, or one of
// several in as many processes.
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

// Embedded is a running member of etcd.
type Embedded struct {
	server    *embed.Etcd
	lock      *fileutil.LockedFile
	socketDir string
	// noted is the file that tells other processes of the same user where the socket is.
	noted    string
	logLevel zap.AtomicLevel
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

// Start runs etcd as its only member on the data in dir, which is made if it does not exist. Writes are synced to disk before
// they are acknowledged. It fails with ErrInUse when another process runs on dir.
func Start(dir string) (_ *Embedded, err error) {
	e := &Embedded{}
	defer func() {
		if err != nil {
			e.Stop()
		}
	}()
	if err := e.open(dir); err != nil {
		return nil, err
	}
	config := e.config(dir)
	config.Name = "knative-apiserver"
	config.ListenPeerUrls = []url.URL{e.socket("peer")}
	// A member keeps the peer address it was born with; a single member never dials it.
	config.AdvertisePeerUrls = []url.URL{{Scheme: "http", Host: "localhost:0"}}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	// Entries that were applied are kept in memory for members that lag behind, and there are none.
	config.SnapshotCatchUpEntries = 100

	if e.server, err = embed.StartEtcd(config); err != nil {
		return nil, fmt.Errorf("starting the embedded etcd on %s: %w", config.Dir, err)
	}
	select {
	case <-e.server.Server.ReadyNotify():
		e.reserve()
		return e, nil
	case err := <-e.server.Err():
		return nil, fmt.Errorf("the embedded etcd on %s failed: %w", config.Dir, err)
	case <-time.After(startTimeout):
		return nil, fmt.Errorf("the embedded etcd on %s was not ready after %s", config.Dir, startTimeout)
	}
}

// open locks dir, which is made if it does not exist, and makes the directory of the socket. Stop undoes what was done,
// also after an error.
func (e *Embedded) open(dir string) (err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making the data directory: %w", err)
	}
	if e.lock, err = lockfile.Acquire(filepath.Join(dir, "lock")); errors.Is(err, lockfile.ErrHeld) {
		return fmt.Errorf("%w: %s", ErrInUse, dir)
	} else if err != nil {
		return err
	}
	// The API server reaches etcd by a socket in a directory of our own user's: there is no port that others
	// on this machine could read or write objects by. It is not in dir because socket paths are short.
	if e.socketDir, err = os.MkdirTemp("", "knative-apiserver-"); err != nil {
		return fmt.Errorf("making a directory for etcd's socket: %w", err)
	}
	e.noted = endpointFile(dir)
	if err := os.WriteFile(e.noted, []byte(e.Endpoints()[0]), 0o600); err != nil {
		return fmt.Errorf("noting where etcd's socket is: %w", err)
	}
	return nil
}

// config is what all members have in common, whether or not they are the only one.
func (e *Embedded) config(dir string) *embed.Config {
	client := e.socket("client")
	config := embed.NewConfig()
	config.Dir = dataDir(dir)
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	config.QuotaBackendBytes = quotaBytes
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(e.logger())
	return config
}

// dataDir is where the data is within the directory that members are given.
func dataDir(dir string) string { return filepath.Join(dir, "etcd") }

// endpointFile is where the address for clients of the member that runs on dir is noted.
func endpointFile(dir string) string { return filepath.Join(dir, "etcd-endpoint") }

// reserve begins to keep space for the database.
func (e *Embedded) reserve() {
	e.stopReserve = make(chan struct{})
	go keepReserve(e.stopReserve, filepath.Join(e.server.Server.Cfg.DataDir, "member", "snap", "db"))
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
	e.end()
	if e.noted != "" {
		os.Remove(e.noted)
	}
	if e.socketDir != "" {
		os.RemoveAll(e.socketDir)
	}
	if e.lock != nil {
		e.lock.Close()
	}
}

// end ends etcd, if it runs, and keeps the directory.
func (e *Embedded) end() {
	if e.server == nil {
		return
	}
	// It calls the end of its own listeners an error.
	e.logLevel.SetLevel(zap.FatalLevel)
	select {
	case <-e.server.Server.ReadyNotify():
	default:
		// Close waits for those who serve clients, which wait for the member to be ready.
		e.server.Server.HardStop()
	}
	e.server.Close()
}

// halt ends etcd so that it can be started again.
func (e *Embedded) halt() {
	e.end()
	e.server = nil
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
