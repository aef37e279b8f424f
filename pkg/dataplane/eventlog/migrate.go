package eventlog

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// singleDir is where the store of a single server is moved to within the directory when it becomes one of a cluster.
	singleDir = "single"
	// adoptEvery is the time between attempts to take over what a single server held, and lookEvery that between looks at
	// whether all was.
	adoptEvery = 2 * time.Second
	lookEvery  = 200 * time.Millisecond
)

// metaDir is where a server of a cluster keeps what the cluster agreed on.
func metaDir(dir string) string {
	return filepath.Join(dir, server.JetStreamStoreDir, server.DEFAULT_SYSTEM_ACCOUNT, "_js_", "_meta_")
}

func exists(path string) (bool, error) {
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// setAside moves the store of a single server out of the way of a server that is one of a cluster, which would remove
// streams that the cluster does not know. The rest of a move that was interrupted is none: it is one step.
func setAside(dir string) error {
	ofCluster, err := exists(metaDir(dir))
	if err != nil || ofCluster {
		return err
	}
	streams, err := directories(streamsDir(dir))
	if err != nil || len(streams) == 0 {
		return err
	}
	aside := filepath.Join(dir, singleDir)
	if err := os.MkdirAll(aside, 0o700); err != nil {
		return err
	}
	return os.Rename(filepath.Join(dir, server.JetStreamStoreDir), filepath.Join(aside, server.JetStreamStoreDir))
}

// adopt appends what was set aside to the streams of the cluster, and tries until all is there.
func (l *Log) adopt() {
	dir := filepath.Join(l.opts.Dir, singleDir)
	for l.ctx.Err() == nil {
		found, err := exists(dir)
		if err == nil && !found {
			return
		}
		if err == nil {
			err = l.adoptFrom(dir)
		}
		if err == nil || l.ctx.Err() != nil {
			continue
		}
		l.logger.Info("What the single server held is not taken over yet", "directory", dir, "reason", err.Error())
		select {
		case <-l.ctx.Done():
		case <-time.After(adoptEvery):
		}
	}
}

// adoptFrom takes over the streams of a single server's store, and removes it.
func (l *Log) adoptFrom(dir string) (err error) {
	old, err := Open(l.ctx, Options{Dir: dir, Installation: l.opts.Installation, Logger: l.logger})
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, old.Close())
		if err == nil {
			err = os.RemoveAll(dir)
		}
	}()
	ids, err := old.StreamIDs(l.ctx)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := l.adoptStream(old, id); err != nil {
			return fmt.Errorf("stream '%s': %w", id, err)
		}
		l.logger.Info("What the single server held of a stream is taken over", "stream", id)
	}
	return nil
}

// adoptStream moves the frames of a stream. What was interrupted is moved again.
func (l *Log) adoptStream(old *Log, id string) error {
	from, err := old.Stream(l.ctx, StreamConfig{ID: id})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(l.ctx, apiTimeout)
	defer cancel()
	s, err := l.session(ctx)
	if err != nil {
		return err
	}
	config := StreamConfig{ID: id}
	// Whoever opens the stream describes it.
	_, err = s.js.Stream(ctx, l.streamName(id))
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		_, err = l.ensure(ctx, s, l.config(config))
	}
	if err != nil {
		return l.explain("look for it in the cluster, or create it there", err)
	}
	to := &Stream{log: l, config: config, name: l.streamName(id)}
	queues, err := from.Queues(l.ctx)
	if err != nil {
		return err
	}
	for queue := range queues {
		c, err := from.Consume(queue, ConsumeOptions{}, func(f *Frame) {
			if err := to.Append(l.ctx, f.asRecords()...); err != nil {
				l.logger.Info("A frame of the single server is not taken over yet", "stream", id, "reason", err.Error())
				f.Again(time.Second)
				return
			}
			f.Done()
		})
		if err != nil {
			return err
		}
		defer c.Stop()
	}
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for len(queues) > 0 {
		select {
		case <-l.ctx.Done():
			return ErrClosed
		case <-ticker.C:
		}
		if queues, err = from.Queues(l.ctx); err != nil {
			return err
		}
	}
	return old.DeleteStream(l.ctx, id)
}

// asRecords are the records of a frame to be appended to another stream.
func (f *Frame) asRecords() []Record {
	records := make([]Record, 0, len(f.Records))
	for _, data := range f.Records {
		records = append(records, Record{Queue: f.Queue, Data: data, Alone: len(f.Records) == 1})
	}
	return records
}
