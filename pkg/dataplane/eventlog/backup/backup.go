package eventlog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/layout"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/server"
)

// ErrIncomplete says that a backup ends before what Backup wrote does.
var ErrIncomplete = errors.New("the backup of the event log is incomplete")

// ErrSkipped means that a backup has frames of streams whose objects do not exist. They were not restored.
var ErrSkipped = errors.New("events were not restored, because these objects do not exist (restore them first)")

// saved is a line of a backup, in JSON: a frame and its stream, or the last one, which has nothing but the number of those
// before it.
type saved struct {
	Stream      string `json:"stream,omitempty"`
	Description string `json:"description,omitempty"`
	Tenant      string `json:"tenant,omitempty"`
	Memory      bool   `json:"memory,omitempty"`
	Queue       string `json:"queue,omitempty"`
	Frame       []byte `json:"frame,omitempty"`
	Total       *int   `json:"total,omitempty"`
}

// Backup writes the frames that the installation's streams hold, as Restore takes them. Of those that are appended or done
// while it runs, it may write some and not others.
func (l *Log) Backup(ctx context.Context, w io.Writer) error {
	s, err := l.server.Session(ctx)
	if err != nil {
		return fmt.Errorf("event log: backup: %w", err)
	}
	out := json.NewEncoder(w)
	total := 0
	list := s.JetStream.ListStreams(ctx, jetstream.WithStreamListSubject(layout.Subjects(l.opts.Installation)))
	for info := range list.Info() {
		if info.Config.Metadata[layout.InstallationKey] != l.opts.Installation {
			continue
		}
		n, err := l.save(ctx, s, info, out)
		if err != nil {
			return err
		}
		total += n
	}
	if list.Err() != nil {
		return l.server.Explain("list streams", list.Err())
	}
	return out.Encode(saved{Total: &total})
}

// save writes the frames of a stream, and returns how many.
func (l *Log) save(ctx context.Context, s *server.Session, info *jetstream.StreamInfo, out *json.Encoder) (int, error) {
	id := info.Config.Metadata[layout.IDKey]
	what := fmt.Sprintf("backup of stream '%s'", id)
	stream, err := s.JetStream.Stream(ctx, info.Config.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, l.server.Explain(what, err)
	}
	names := l.names(id)
	n := 0
	for next := info.State.FirstSeq; next <= info.State.LastSeq; n++ {
		msg, err := stream.GetMsg(ctx, next, jetstream.WithGetMsgSubject(names.Subjects()))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			break
		}
		if err != nil {
			return 0, l.server.Explain(what, err)
		}
		line := saved{
			Stream: id, Description: info.Config.Description, Tenant: info.Config.Metadata[layout.TenantKey], Memory: info.Config.Storage == jetstream.MemoryStorage,
			Queue: names.Queue(msg.Subject), Frame: msg.Data,
		}
		if err := out.Encode(line); err != nil {
			return 0, fmt.Errorf("event log: %s: %w", what, err)
		}
		next = msg.Sequence + 1
	}
	return n, nil
}

// Restore appends what Backup wrote to the streams it is from. Streams are created if RestoreHooks.Exists allows it; the frames
// of others are skipped, and the error wraps ErrSkipped once all others are restored. Frames that the log holds already come
// twice. The error wraps ErrIncomplete if the end is missing; the frames before it are restored then.
func (l *Log) Restore(ctx context.Context, r io.Reader) error {
	l.mu.Lock()
	hooks := l.restoreHooks
	l.mu.Unlock()
	in := json.NewDecoder(r)
	restored := map[string]bool{}
	defer func() {
		for id := range restored {
			if hooks.Restored != nil {
				hooks.Restored(id)
			}
		}
	}()
	skipped := skippedStreams{}
	for n := 0; ; n++ {
		var line saved
		if err := in.Decode(&line); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return fmt.Errorf("%w: it ends after %d frames", ErrIncomplete, n)
		} else if err != nil {
			return fmt.Errorf("event log: restore: %w", err)
		}
		if line.Total != nil {
			if *line.Total != n {
				return fmt.Errorf("%w: it has %d of %d frames", ErrIncomplete, n, *line.Total)
			}
			return skipped.err()
		}
		if !restored[line.Stream] {
			exists, err := skipped.exists(ctx, hooks, &line)
			if err != nil {
				return fmt.Errorf("event log: restore stream '%s': %w", line.Stream, err)
			}
			if !exists {
				continue
			}
		}
		data, err := layout.Records(line.Frame)
		if err != nil {
			return fmt.Errorf("event log: restore stream '%s': %w", line.Stream, err)
		}
		stream, err := l.Stream(ctx, StreamConfig{ID: line.Stream, Description: line.Description, Tenant: line.Tenant, Memory: line.Memory})
		if err != nil {
			return err
		}

		if err := stream.Append(ctx, recordsOf(line.Queue, data)...); err != nil {
			return err
		}
		restored[line.Stream] = true
	}
}

// RestoreHooks are called by Restore. Each may be nil.
type RestoreHooks struct {
	// Exists reports whether the object of a stream exists, by the ID of the stream. Nil means that all do.
	Exists func(ctx context.Context, id string) (bool, error)
	// Restored is called at the end for each stream that frames were appended to.
	Restored func(id string)
}

// SetRestoreHooks sets the functions that Restore calls.
func (l *Log) SetRestoreHooks(hooks RestoreHooks) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.restoreHooks = hooks
}

// skippedStreams counts the skipped frames of streams that do not exist, by ID.
type skippedStreams map[string]*skippedStream

type skippedStream struct {
	description string
	frames      int
}

// exists reports whether the stream of a frame exists, and counts the frame if it does not.
func (s skippedStreams) exists(ctx context.Context, hooks RestoreHooks, line *saved) (bool, error) {
	if s[line.Stream] == nil {
		if hooks.Exists == nil {
			return true, nil
		}
		if exists, err := hooks.Exists(ctx, line.Stream); exists || err != nil {
			return exists, err
		}
		s[line.Stream] = &skippedStream{description: line.Description}
	}
	s[line.Stream].frames++
	return false, nil
}

func (s skippedStreams) err() error {
	if len(s) == 0 {
		return nil
	}
	all := make([]string, 0, len(s))
	for id, stream := range s {
		all = append(all, fmt.Sprintf("%s with UID %s (%d frames)", stream.description, id, stream.frames))
	}
	slices.Sort(all)
	return fmt.Errorf("%w: %s", ErrSkipped, strings.Join(all, ", "))
}
