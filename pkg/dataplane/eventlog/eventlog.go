// Package eventlog is the durable log behind Brokers and Channels, on NATS JetStream: embedded in this process, alone or
// as one of a cluster of several processes, or on existing NATS servers.
//
// A Stream holds the events of one Broker or Channel until all its segments are acknowledged. Records are in queues: the
// shared one, and one for each consumer with events to retry. Concurrent appends are committed together, the records of a
// queue as one message (a segment), so that durability costs per commit and not per event. A segment is removed when it is
// acknowledged, and delivered again until then, also to the next process: at least once (eventing Event Acknowledgement
// and Delivery Retry).
package eventlog

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/go-logr/logr"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/singleflight"
	"k8s.io/component-base/metrics"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/backup"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/commit"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/consume"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/layout"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/server"
)

// Errors of Append, for errors.Is. With ErrTooLarge nothing was stored; with any other some records may be, so that
// appending them again may store them twice.
var (
	// ErrFull is returned while a limit of the log or its disk is reached, until segments are acknowledged.
	ErrFull = server.ErrFull
	// ErrShareFull wraps ErrFull. It is returned while the streams of one tenant hold their share of the log; other
	// tenants are not affected.
	ErrShareFull = commit.ErrShareFull
	// ErrTooLarge is returned for a record that is larger than the server's maximum message.
	ErrTooLarge = server.ErrTooLarge
	// ErrClosed is returned after the log was closed, or the stream deleted.
	ErrClosed = server.ErrClosed
	// ErrUnavailable is returned while the log cannot be reached or written.
	ErrUnavailable = server.ErrUnavailable
)

// Cluster makes the embedded server one of several.
type Cluster = server.Cluster

// Record is an event, or a delivery to retry.
type Record = commit.Record

// Segment is a message of the log: records of one queue, delivered together until they are acknowledged.
type Segment = consume.Segment

// Consumer delivers the segments of a queue to a function until it is stopped.
type Consumer = consume.Consumer

// ConsumeOptions limit the segments of a consumer that are not acknowledged.
type ConsumeOptions = consume.Options

const (
	// maxMemory limits the embedded server's streams in memory together, in bytes.
	maxMemory = 1 << 30
	// One stream may hold a quarter of the limit of the embedded store, the streams of one tenant half of it.
	streamShare = 4
	tenantShare = 2
)

// Options configure the log.
type Options struct {
	// Dir is the directory of the embedded server's store, which is used if URL is empty. It is created, with mode 0700.
	Dir string
	// Cluster makes the embedded server one of several; nil for a single one.
	Cluster *Cluster
	// URL is the address of existing NATS servers, separated by commas.
	URL string
	// CredentialsFile, CAFile, CertFile and KeyFile are for the connection to URL; each may be empty.
	CredentialsFile, CAFile, CertFile, KeyFile string
	// Dial connects to the addresses of URL; nil means net.Dial.
	Dial server.Dialer
	// Replicas is the number of servers of URL, or of Cluster, that hold each stream; 0 means 1.
	Replicas int

	// MaxBytes limits the embedded store as a whole, except for streams in memory, whose limit is 1 GiB; 0 means no limit.
	// MaxStreamBytes limits each stream; 0 means a quarter of MaxBytes, or of the filesystem without MaxBytes, and no limit
	// at the URL. The streams of one tenant in the embedded store accept new records up to half of its limit, or up to
	// MaxStreamBytes if that is more. Bytes written within a few milliseconds may exceed MaxBytes by their overhead.
	MaxBytes, MaxStreamBytes int64
	// MinFreeBytes is the free space of Dir's filesystem below which the embedded log is full, because a server that
	// reaches the end of its disk fails. 0 means 64 MiB, less on filesystems below 1 GiB.
	MinFreeBytes int64

	// Cached is called with the changes of the bytes that the embedded server has in memory for a tenant's streams on disk: files that
	// were written to within the last ten seconds, and have unacknowledged segments. Nil does not estimate them.
	Cached func(tenant string, bytes int64)

	// Installation distinguishes the streams of this installation from others in the same NATS: letters, digits, "-" and
	// "_". Empty means "local".
	Installation string
	Logger       logr.Logger
	// Register registers the log's metrics, which have no labels; nil does not.
	Register func(...metrics.Registerable)
}

// Log is the event log. Its methods may be called concurrently.
type Log struct {
	opts    Options
	logger  logr.Logger
	metrics *instruments // of this package and commit
	server  *server.Server
	space   *server.Space // nil unless embedded
	// memory and disk limit all streams there together; nil for no limit.
	memory, disk *commit.Quota
	// memoryShares and diskShares limit the bytes that the streams of each tenant hold there; nil unless embedded.
	memoryShares, diskShares *commit.Shares

	ctx     context.Context
	wg      sync.WaitGroup   // migrate
	backups *backup.Listener // nil unless embedded

	consumers *consume.Consumers

	// creating has the retained streams that are being created, by their IDs.
	creating singleflight.Group

	mu           sync.Mutex
	closed       bool
	streams      map[string]*Stream
	retained     map[string]*commit.Writer
	restoreHooks RestoreHooks
	// retainedSizes are the sizes of the retained streams by the prefix of their IDs.
	retainedSizes map[string]int64

	// retainedBytes is the sum of retainedSizes.
	retainedBytes atomic.Int64
}

// Open starts the embedded server, or connects to the one at the URL, which takes 10 s at most. It does not wait for the
// other servers of a Cluster: until most of them run, requests that need them fail with ErrUnavailable. Its errors name
// the directory that cannot be written, the URL that cannot be reached, or the missing feature.
func Open(ctx context.Context, o Options) (*Log, error) {
	if o.Installation == "" {
		o.Installation = "local"
	}
	if !server.ValidName(o.Installation) {
		return nil, fmt.Errorf("event log: installation '%s' must consist of letters, digits, '-' and '_'", o.Installation)
	}
	o.Replicas = max(o.Replicas, 1)
	if o.URL == "" && o.MaxStreamBytes == 0 && o.MaxBytes > 0 {
		o.MaxStreamBytes = max(o.MaxBytes/streamShare, 1)
	}
	if o.URL == "" && o.Cluster != nil {
		if err := o.Cluster.Validate(); err != nil {
			return nil, fmt.Errorf("event log: %w", err)
		}
	}
	l := &Log{
		opts: o, logger: o.Logger.WithName("eventlog"), metrics: newInstruments(o.Register),
		streams: map[string]*Stream{}, retained: map[string]*commit.Writer{}, retainedSizes: map[string]int64{},
	}
	if err := l.openServer(ctx); err != nil {
		return nil, err
	}
	l.consumers = consume.New(l.server, l.logger)
	if l.server.Clustered() {
		l.wg.Go(l.migrate)
	}
	return l, nil
}

// openServer opens the server, and sets the limits of an embedded one.
func (l *Log) openServer(ctx context.Context) (err error) {
	o := l.opts
	l.server, err = server.Open(ctx, server.Options{
		Dir: o.Dir, Cluster: o.Cluster, MinFreeBytes: o.MinFreeBytes, Restarts: l.metrics.restarts,
		URL: o.URL, CredentialsFile: o.CredentialsFile, CAFile: o.CAFile, CertFile: o.CertFile, KeyFile: o.KeyFile, Dial: o.Dial,
		Probe: l.config(StreamConfig{
			ID: "probe-" + nats.NewInbox()[len(nats.InboxPrefix):], Description: "Probe of the NATS server at startup",
		}),
		Replicas: o.Replicas, Installation: o.Installation, Logger: l.logger,
	})
	if err != nil {
		return err
	}
	l.ctx = l.server.Context()
	if !l.server.Embedded() {
		return nil
	}
	l.space = l.server.Space()
	if o.MaxStreamBytes == 0 {
		l.opts.MaxStreamBytes = l.space.Size() / streamShare
	}
	l.setLimits()
	if l.backups, err = backup.Listen(ctx, o.Dir, l, l.logger); err != nil {
		l.server.Stop()
		l.server.Close()
	}
	return err
}

// setLimits limits the bytes that the embedded server's streams hold.
func (l *Log) setLimits() {
	l.memory = &commit.Quota{Limit: maxMemory, Held: func() int64 { memory, _ := l.server.Usage(); return memory }}
	size := l.opts.MaxBytes
	if size > 0 {
		l.disk = &commit.Quota{Limit: size, Held: func() int64 {
			_, disk := l.server.Usage()
			return max(disk-l.retainedBytes.Load(), 0)
		}}
	} else {
		size = l.space.Size()
	}
	shares := func(limit int64, storage jetstream.StorageType) *commit.Shares {
		return &commit.Shares{Limit: limit, Held: func() (map[string]int64, bool) { return l.server.TenantUsage(storage) }}
	}
	l.memoryShares = shares(maxMemory/tenantShare, jetstream.MemoryStorage)
	l.diskShares = shares(max(size/tenantShare, l.opts.MaxStreamBytes), jetstream.FileStorage)
}

// Close stops all consumers and the embedded server. When it returns, acknowledgements are durable; segments without one
// are delivered again immediately when the log is opened next.
func (l *Log) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	l.mu.Unlock()
	l.server.Stop()
	if l.backups != nil {
		l.backups.Close()
	}
	l.wg.Wait()
	l.consumers.Close()
	return l.server.Close()
}

// Health returns the reason why the log does not accept or deliver records; in a cluster, also whether this server is still
// catching up. It wraps ErrFull, ErrUnavailable or ErrClosed.
func (l *Log) Health(context.Context) error { return l.server.Health() }

// names returns the names of a stream in JetStream.
func (l *Log) names(id string) layout.Stream {
	return layout.Stream{Installation: l.opts.Installation, ID: id}
}

// config returns the configuration of a stream in JetStream.
func (l *Log) config(c StreamConfig) jetstream.StreamConfig {
	names := l.names(c.ID)
	config := jetstream.StreamConfig{
		Name:        names.Name(),
		Description: c.Description,
		Subjects:    []string{names.Subjects()},
		Metadata:    map[string]string{layout.InstallationKey: l.opts.Installation, layout.IDKey: c.ID},
		// Only acknowledged segments are removed: not by age, not by size.
		Retention:          jetstream.WorkQueuePolicy,
		Discard:            jetstream.DiscardNew,
		MaxBytes:           -1,
		Replicas:           l.opts.Replicas,
		AllowAtomicPublish: true,
	}
	if c.Tenant != "" {
		config.Metadata[layout.TenantKey] = c.Tenant
	}
	if l.opts.MaxStreamBytes > 0 {
		config.MaxBytes = l.opts.MaxStreamBytes
	}
	if c.Memory {
		config.Storage = jetstream.MemoryStorage
		if l.opts.URL == "" {
			config.MaxBytes = min(config.MaxBytes, maxMemory/streamShare)
			if config.MaxBytes < 0 {
				config.MaxBytes = maxMemory / streamShare
			}
		}
	}
	return config
}
