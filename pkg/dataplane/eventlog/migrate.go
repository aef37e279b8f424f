package eventlog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/server"
)

const (
	// migrateInterval is the time between attempts to migrate the store of a single server, emptyInterval the time between
	// checks whether a stream of it is empty.
	migrateInterval = 2 * time.Second
	emptyInterval   = 200 * time.Millisecond
	// migrateMessages and migrateBytes bound the messages of a retained stream that are moved together.
	migrateMessages, migrateBytes = 256, 4 << 20
)

// migrate appends the streams of the single server that this one was before to the streams of the cluster, and retries
// until all are migrated.
func (l *Log) migrate() {
	dir := server.SingleDir(l.opts.Dir)
	for l.ctx.Err() == nil {
		_, err := os.Stat(dir)
		if errors.Is(err, fs.ErrNotExist) {
			return
		}
		if err == nil {
			err = l.migrateStore(dir)
		}
		if err == nil || l.ctx.Err() != nil {
			continue
		}
		l.logger.Info("Failed to migrate the store of the single server; retrying", "directory", dir, "reason", err.Error())
		select {
		case <-l.ctx.Done():
		case <-time.After(migrateInterval):
		}
	}
}

// migrateStore migrates all streams in a single server's store, and removes it.
func (l *Log) migrateStore(dir string) (err error) {
	single, err := Open(l.ctx, Options{Dir: dir, Installation: l.opts.Installation, Logger: l.logger})
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, single.Close())
		if err == nil {
			err = os.RemoveAll(dir)
		}
	}()
	ids, err := single.StreamIDs(l.ctx)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := l.migrateStream(single, id); err != nil {
			return fmt.Errorf("stream '%s': %w", id, err)
		}
		l.logger.Info("Migrated a stream of the single server", "stream", id)
	}
	retained, err := single.RetainedStates(l.ctx, "")
	for i := 0; i < len(retained) && err == nil; i++ {
		err = l.migrateRetained(single, retained[i].ID)
	}
	return err
}

// migrateRetained moves the messages of a retained stream, and deletes it. An interrupted move is repeated.
func (l *Log) migrateRetained(single *Log, id string) error {
	from, err := single.Retained(id)
	if err != nil {
		return err
	}
	to, err := l.Retained(id)
	if err != nil {
		return err
	}
	for next := uint64(1); next > 0; {
		var messages []RetainedMessage
		if messages, next, err = from.Read(l.ctx, "", next, migrateMessages, migrateBytes); err != nil {
			return err
		}
		records := make([]Record, 0, len(messages))
		for i := range messages {
			for _, data := range messages[i].Records {
				records = append(records, Record{Queue: messages[i].Queue, Data: data, Alone: len(messages[i].Records) == 1})
			}
		}
		if err := to.AppendTogether(l.ctx, records...); err != nil {
			return err
		}
	}
	return from.DeleteStream(l.ctx)
}

// migrateStream moves the segments of a stream, and deletes it. An interrupted move is repeated.
func (l *Log) migrateStream(single *Log, id string) error {
	from, err := single.Stream(l.ctx, StreamConfig{ID: id})
	if err != nil {
		return err
	}
	to, err := l.streamToRestore(id)
	if err != nil {
		return err
	}
	queues, err := from.Queues(l.ctx)
	if err != nil {
		return err
	}
	for queue := range queues {
		c, err := from.Consume(queue, ConsumeOptions{}, func(segment *Segment) {
			if err := to.Append(l.ctx, recordsOf(queue, segment.Records)...); err != nil {
				l.logger.Info("Failed to migrate events of the single server; retrying", "stream", id, "reason", err.Error())
				segment.Nack(time.Second)
				return
			}
			segment.Ack()
		})
		if err != nil {
			return err
		}
		defer c.Stop()
	}
	ticker := time.NewTicker(emptyInterval)
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
	return single.DeleteStream(l.ctx, id)
}

// streamToRestore returns a stream to append to, which is created if it does not exist. The next caller of Log.Stream
// describes it.
func (l *Log) streamToRestore(id string) (*Stream, error) {
	session, ctx, cancel, err := l.server.Request(l.ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()
	c := StreamConfig{ID: id}
	config := l.config(c)
	_, err = session.JetStream.Stream(ctx, config.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		_, err = session.EnsureStream(ctx, config)
	}
	if err != nil {
		return nil, l.server.Explain(fmt.Sprintf("look up or create stream '%s'", id), err)
	}
	return l.newStream(c, config), nil
}

// recordsOf returns the records of a segment, to be appended to another stream.
func recordsOf(queue string, segment [][]byte) []Record {
	records := make([]Record, 0, len(segment))
	for _, data := range segment {
		records = append(records, Record{Queue: queue, Data: data, Alone: len(segment) == 1})
	}
	return records
}
