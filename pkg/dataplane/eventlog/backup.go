package eventlog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// ErrIncomplete says that a backup ends before what Backup wrote does.
var ErrIncomplete = errors.New("the backup of the event log is incomplete")

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
	s, err := l.session(ctx)
	if err != nil {
		return fmt.Errorf("event log: backup: %w", err)
	}
	out := json.NewEncoder(w)
	total := 0
	list := s.js.ListStreams(ctx, jetstream.WithStreamListSubject("KN."+l.opts.Installation+".>"))
	for info := range list.Info() {
		if info.Config.Metadata[installationMeta] != l.opts.Installation {
			continue
		}
		n, err := l.save(ctx, s, info, out)
		if err != nil {
			return err
		}
		total += n
	}
	if list.Err() != nil {
		return l.explain("list streams", list.Err())
	}
	return out.Encode(saved{Total: &total})
}

// save writes the frames of a stream, and returns how many.
func (l *Log) save(ctx context.Context, s *session, info *jetstream.StreamInfo, out *json.Encoder) (int, error) {
	id := info.Config.Metadata[idMeta]
	what := fmt.Sprintf("backup of stream '%s'", id)
	stream, err := s.js.Stream(ctx, info.Config.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, l.explain(what, err)
	}
	prefix := l.prefix(id)
	n := 0
	for next := info.State.FirstSeq; next <= info.State.LastSeq; n++ {
		msg, err := stream.GetMsg(ctx, next, jetstream.WithGetMsgSubject(prefix+">"))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			break
		}
		if err != nil {
			return 0, l.explain(what, err)
		}
		_, queue, _ := strings.Cut(msg.Subject, prefix+ownQueue)
		line := saved{
			Stream: id, Description: info.Config.Description, Tenant: info.Config.Metadata[tenantMeta], Memory: info.Config.Storage == jetstream.MemoryStorage,
			Queue: queue, Frame: msg.Data,
		}
		if err := out.Encode(line); err != nil {
			return 0, fmt.Errorf("event log: %s: %w", what, err)
		}
		next = msg.Sequence + 1
	}
	return n, nil
}

// Restore appends what Backup wrote to the streams it is from, which it creates if there are none. What is there already
// comes twice. Its error wraps ErrIncomplete if the end is missing; what was there is restored then.
func (l *Log) Restore(ctx context.Context, r io.Reader) error {
	in := json.NewDecoder(r)
	restored := map[string]bool{}
	defer func() {
		l.mu.Lock()
		tell := l.restored
		l.mu.Unlock()
		for id := range restored {
			if tell != nil {
				tell(id)
			}
		}
	}()
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
			return nil
		}
		data, err := records(line.Frame)
		if err != nil {
			return fmt.Errorf("event log: restore stream '%s': %w", line.Stream, err)
		}
		stream, err := l.Stream(ctx, StreamConfig{ID: line.Stream, Description: line.Description, Tenant: line.Tenant, Memory: line.Memory})
		if err != nil {
			return err
		}
		f := &Frame{Records: data, Queue: line.Queue}
		if err := stream.Append(ctx, f.asRecords()...); err != nil {
			return err
		}
		restored[line.Stream] = true
	}
}

// OnRestore has a function called with the IDs of streams to which something was restored.
func (l *Log) OnRestore(do func(id string)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.restored = do
}
