package eventlog

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/backup"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/layout"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/server"
)

// RestoreHooks are called by Restore.
type RestoreHooks = backup.RestoreHooks

// SetRestoreHooks sets the functions that Restore calls.
func (l *Log) SetRestoreHooks(hooks RestoreHooks) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.restoreHooks = hooks
}

// Backup writes the segments of the installation's streams, in the form that Restore reads. Records that a stream has when it
// begins, and still has at the end, are in it, even if they were moved to other segments of the stream meanwhile.
func (l *Log) Backup(ctx context.Context, w io.Writer) error {
	return backup.Save(ctx, stored{l}, w)
}

// Restore appends the segments of a backup to their streams; see backup.Restore.
func (l *Log) Restore(ctx context.Context, r io.Reader) error {
	l.mu.Lock()
	hooks := l.restoreHooks
	l.mu.Unlock()
	return backup.Restore(ctx, stored{l}, hooks, r)
}

// stored is a log as backup.Log.
type stored struct{ *Log }

// Segments implements backup.Log.
func (l stored) Segments(ctx context.Context, save func(*backup.Segment) error) error {
	session, err := l.server.Session(ctx)
	if err != nil {
		return fmt.Errorf("event log: backup: %w", err)
	}
	list := session.JetStream.ListStreams(ctx, jetstream.WithStreamListSubject(layout.Subjects(l.opts.Installation)))
	for info := range list.Info() {
		if info.Config.Metadata[layout.InstallationKey] != l.opts.Installation {
			continue
		}
		if err := l.segmentsOf(ctx, session, info, save); err != nil {
			return err
		}
	}
	if list.Err() != nil {
		return l.server.Explain("list streams", list.Err())
	}
	return nil
}

// segmentsOf calls save for each segment of a stream. It reads up to the end of the stream, beyond the segments that existed at first: a
// record is moved by being appended to another segment before its own one is removed, which may not be read yet.
func (l stored) segmentsOf(ctx context.Context, session *server.Session, info *jetstream.StreamInfo, save func(*backup.Segment) error) error {
	id := info.Config.Metadata[layout.IDKey]
	action := fmt.Sprintf("backup of stream '%s'", id)
	stream, err := session.JetStream.Stream(ctx, info.Config.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	if err != nil {
		return l.server.Explain(action, err)
	}
	names := l.names(id)
	for next := info.State.FirstSeq; ; {
		msg, err := stream.GetMsg(ctx, next, jetstream.WithGetMsgSubject(names.Subjects()))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil
		}
		if err != nil {
			return l.server.Explain(action, err)
		}
		segment := &backup.Segment{
			Stream: id, Description: info.Config.Description, Tenant: info.Config.Metadata[layout.TenantKey],
			Memory: info.Config.Storage == jetstream.MemoryStorage, Queue: names.Queue(msg.Subject), Data: msg.Data,
		}
		if err := save(segment); err != nil {
			return err
		}
		next = msg.Sequence + 1
	}
}

// AppendSegment implements backup.Log.
func (l stored) AppendSegment(ctx context.Context, s *backup.Segment) error {
	data, err := layout.Records(s.Data)
	if err != nil {
		return fmt.Errorf("event log: restore stream '%s': %w", s.Stream, err)
	}
	stream, err := l.Stream(ctx, StreamConfig{ID: s.Stream, Description: s.Description, Tenant: s.Tenant, Memory: s.Memory})
	if err != nil {
		return err
	}
	return stream.Append(ctx, recordsOf(s.Queue, data)...)
}
