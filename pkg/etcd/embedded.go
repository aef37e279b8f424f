// Package etcd runs an etcd member in this process, for installations without an external etcd: either the only member of its
// cluster or one of several, each in its own process.
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

// Embedded is a running etcd member.
type Embedded struct {
	server    *embed.Etcd
	lock      *fileutil.LockedFile
	socketDir string
	// noted is the file that contains the path of the socket, for other processes of the same user.
	noted    string
	logLevel zap.AtomicLevel
	// stopReserve stops keepReserve.
	stopReserve chan struct{}
}

const (
	// startTimeout bounds the time for the member to replay its log and elect itself.
	startTimeout = time.Minute
	// tickMs is the interval of the clock of a single member, in milliseconds; 100 by default, with elections after at least ten ticks.
	tickMs = 20
	// quotaBytes is the database size at which etcd rejects writes.
	quotaBytes = 8 << 30
	// batchInterval is the time for which writes are gathered into one transaction of the database, whose sync delays others; 100 ms
	// by default. The log has all writes before they are acknowledged, and is read from the last transaction after a crash.
	batchInterval = 500 * time.Millisecond
)

// ErrInUse is returned if another process runs on the same data directory.
var ErrInUse = errors.New("data directory is in use by another knative-apiserver")

// Start runs etcd as the only member on the data in dir, which is created if it does not exist. Writes are synced to disk
// before they are acknowledged. It fails with ErrInUse when another process runs on dir.
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
	// A member keeps its initial peer address; a single member never dials it.
	config.AdvertisePeerUrls = []url.URL{{Scheme: "http", Host: "localhost:0"}}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	// A start waits until the only candidate calls an election.
	config.TickMs, config.ElectionMs = tickMs, 5*tickMs
	// Applied entries are kept in memory for members that lag behind; a single member has none.
	config.SnapshotCatchUpEntries = 100

	if e.server, err = embed.StartEtcd(config); err != nil {
		return nil, fmt.Errorf("start embedded etcd on %s: %w", config.Dir, err)
	}
	select {
	case <-e.server.Server.ReadyNotify():
		e.reserve()
		return e, nil
	case err := <-e.server.Err():
		return nil, fmt.Errorf("embedded etcd on %s failed: %w", config.Dir, err)
	case <-time.After(startTimeout):
		return nil, fmt.Errorf("embedded etcd on %s was not ready after %s", config.Dir, startTimeout)
	}
}

// open locks dir, which is created if it does not exist, and creates the directory of the socket. Stop releases both, also
// after an error.
func (e *Embedded) open(dir string) (err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create data directory: %w", err)
	}
	if e.lock, err = lockfile.Acquire(filepath.Join(dir, "lock")); errors.Is(err, lockfile.ErrHeld) {
		return fmt.Errorf("%w: %s", ErrInUse, dir)
	} else if err != nil {
		return err
	}
	// The API server connects to etcd through a socket in a directory that only the current user can access, so that no
	// port lets others on this machine read or write objects. It is not in dir because socket paths must be short.
	if e.socketDir, err = os.MkdirTemp("", "knative-apiserver-"); err != nil {
		return fmt.Errorf("create directory of etcd socket: %w", err)
	}
	e.noted = endpointFile(dir)
	if err := os.WriteFile(e.noted, []byte(e.Endpoints()[0]), 0o600); err != nil {
		return fmt.Errorf("write path of etcd socket: %w", err)
	}
	return nil
}

// config returns the configuration that single members and members of a cluster have in common.
func (e *Embedded) config(dir string) *embed.Config {
	client := e.socket("client")
	config := embed.NewConfig()
	config.Dir = dataDir(dir)
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	config.QuotaBackendBytes = quotaBytes
	config.BackendBatchInterval = batchInterval
	// A start reads all files of the log, even superfluous ones. Files that are needed after the latest snapshot are always kept.
	config.MaxWalFiles = 1
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(e.logger())
	return config
}

// dataDir returns the directory of the data within the directory of a member.
func dataDir(dir string) string { return filepath.Join(dir, "etcd") }

// endpointFile returns the file with the client address of the member that runs on dir.
func endpointFile(dir string) string { return filepath.Join(dir, "etcd-endpoint") }

// reserve starts reserving disk space for the database.
func (e *Embedded) reserve() {
	e.stopReserve = make(chan struct{})
	go keepReserve(e.stopReserve, filepath.Join(e.server.Server.Cfg.DataDir, "member", "snap", "db"))
}

// Endpoints returns the addresses for etcd clients.
func (e *Embedded) Endpoints() []string {
	client := e.socket("client")
	return []string{client.String()}
}

// Stop stops etcd and releases the data directory.
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

// end stops etcd, if it runs, and keeps the directory locked.
func (e *Embedded) end() {
	if e.server == nil {
		return
	}
	// Err also reports the regular shutdown of listeners.
	e.logLevel.SetLevel(zap.FatalLevel)
	select {
	case <-e.server.Server.ReadyNotify():
	default:
		// Close waits for the client listeners, which wait for the member to be ready.
		e.server.Server.HardStop()
	}
	e.server.Close()
}

// halt stops etcd so that it can be started again.
func (e *Embedded) halt() {
	e.end()
	e.server = nil
}

// logger returns a logger that writes errors to standard error.
func (e *Embedded) logger() *zap.Logger {
	e.logLevel = zap.NewAtomicLevelAt(zap.ErrorLevel)
	encoder := zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig())
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(os.Stderr), e.logLevel)).Named("etcd")
}

func (e *Embedded) socket(name string) url.URL {
	return url.URL{Scheme: "unix", Path: filepath.Join(e.socketDir, name)}
}
