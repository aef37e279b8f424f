// Package backup saves the segments of an event log to a file and restores them, also on request of another process.
package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// ErrIncomplete is returned for a backup whose end is missing.
var ErrIncomplete = errors.New("the backup of the event log is incomplete")

// ErrSkipped is returned for a backup with segments of streams whose objects do not exist. They were not restored.
var ErrSkipped = errors.New("events were not restored, because these objects do not exist (restore them first)")

// Segment is a stored segment of a queue, and the configuration of its stream. A backup has one per line, in JSON.
type Segment struct {
	// Stream is the ID of the stream.
	Stream      string `json:"stream,omitempty"`
	Description string `json:"description,omitempty"`
	Tenant      string `json:"tenant,omitempty"`
	Memory      bool   `json:"memory,omitempty"`
	Queue       string `json:"queue,omitempty"`
	Data        []byte `json:"frame,omitempty"`
}

// line is a line of a backup. The last one has the number of segments before it, and no segment.
type line struct {
	Segment
	Total *int `json:"total,omitempty"`
}

// Log is the log that is saved or restored.
type Log interface {
	// Segments calls save for each segment, until it returns an error. A record that is moved to another segment of its stream meanwhile is
	// in at least one segment that save is called with.
	Segments(ctx context.Context, save func(*Segment) error) error
	// AppendSegment appends the records of a segment to its stream, which is created if it does not exist.
	AppendSegment(ctx context.Context, s *Segment) error
}

// RestoreHooks are called by Restore. Each may be nil.
type RestoreHooks struct {
	// Exists reports whether the object of a stream exists, by the ID of the stream. Nil means that all do.
	Exists func(ctx context.Context, id string) (bool, error)
	// Restored is called at the end for each stream that segments were appended to.
	Restored func(id string)
}

// Save writes the segments of a log, in the form that Restore reads.
func Save(ctx context.Context, log Log, w io.Writer) error {
	out := json.NewEncoder(w)
	total := 0
	err := log.Segments(ctx, func(s *Segment) error {
		if err := out.Encode(line{Segment: *s}); err != nil {
			return fmt.Errorf("event log: backup of stream '%s': %w", s.Stream, err)
		}
		total++
		return nil
	})
	if err != nil {
		return err
	}
	return out.Encode(line{Total: &total})
}

// Restore appends the segments of a backup to their streams. Streams are created if RestoreHooks.Exists allows it; the
// segments of others are skipped, and the error wraps ErrSkipped once all others are restored. Segments that the log still
// has are stored twice. The error wraps ErrIncomplete if the end is missing; the segments before it are restored then.
func Restore(ctx context.Context, log Log, hooks RestoreHooks, r io.Reader) error {
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
		var l line
		if err := in.Decode(&l); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return fmt.Errorf("%w: it ends after %d segments", ErrIncomplete, n)
		} else if err != nil {
			return fmt.Errorf("event log: restore: %w", err)
		}
		if l.Total != nil {
			if *l.Total != n {
				return fmt.Errorf("%w: it has %d of %d segments", ErrIncomplete, n, *l.Total)
			}
			return skipped.err()
		}
		if !restored[l.Stream] {
			exists, err := skipped.exists(ctx, hooks, &l.Segment)
			if err != nil {
				return fmt.Errorf("event log: restore stream '%s': %w", l.Stream, err)
			}
			if !exists {
				continue
			}
		}
		if err := log.AppendSegment(ctx, &l.Segment); err != nil {
			return err
		}
		restored[l.Stream] = true
	}
}

// skippedStreams counts the skipped segments of streams that do not exist, by ID.
type skippedStreams map[string]*skippedStream

type skippedStream struct {
	description string
	segments    int
}

// exists reports whether the stream of a segment exists, and counts the segment if it does not.
func (s skippedStreams) exists(ctx context.Context, hooks RestoreHooks, segment *Segment) (bool, error) {
	if s[segment.Stream] == nil {
		if hooks.Exists == nil {
			return true, nil
		}
		if exists, err := hooks.Exists(ctx, segment.Stream); exists || err != nil {
			return exists, err
		}
		s[segment.Stream] = &skippedStream{description: segment.Description}
	}
	s[segment.Stream].segments++
	return false, nil
}

func (s skippedStreams) err() error {
	if len(s) == 0 {
		return nil
	}
	all := make([]string, 0, len(s))
	for id, stream := range s {
		all = append(all, fmt.Sprintf("%s with UID %s (%d segments)", stream.description, id, stream.segments))
	}
	slices.Sort(all)
	return fmt.Errorf("%w: %s", ErrSkipped, strings.Join(all, ", "))
}
