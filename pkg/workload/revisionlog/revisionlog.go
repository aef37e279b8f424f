// Package revisionlog reads the logs of the instances of Revisions as one stream, wherever they run.
package revisionlog

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// Line is one line of a log.
type Line struct {
	// Instance and Container are whose line it is.
	Instance, Container string
	// Text is without its end. It is not to be kept.
	Text []byte
}

// Source has the logs of the instances of Revisions.
type Source interface {
	// Copy copies the lines that options ask for: one instance after the other, or with options.Follow of all at the
	// same time, until ctx is canceled. write may be called concurrently; Copy returns when no call is left, with the error
	// of write if there is one. Without instances there are no lines.
	Copy(ctx context.Context, revision *servingv1.Revision, options *servingv1.RevisionLogOptions, write func(Line) error) error
}

// ErrNoSource is returned if this server cannot read logs (yet).
var ErrNoSource = errors.New("this server does not know where revisions run")

// Late is a Source that is known later than it is asked for. The zero value has none.
type Late struct{ source atomic.Pointer[Source] }

// Set gives the Source.
func (l *Late) Set(source Source) { l.source.Store(&source) }

// Copy copies from the Source that was set, and fails with ErrNoSource without one.
func (l *Late) Copy(ctx context.Context, revision *servingv1.Revision, options *servingv1.RevisionLogOptions, write func(Line) error) error {
	source := l.source.Load()
	if source == nil {
		return ErrNoSource
	}
	return (*source).Copy(ctx, revision, options, write)
}

// Open returns the lines of a Revision's logs as text, each behind "[instance] ", or "[instance container] " where
// they may be of several containers. Where options do not ask to follow, a Source that fails before the first line
// makes Open fail. Close ends the Source.
func Open(ctx context.Context, source Source, revision *servingv1.Revision, options *servingv1.RevisionLogOptions) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(ctx)
	reader, writer := io.Pipe()
	out := &prefixed{to: writer, several: options.Container == "" && len(revision.Spec.Containers) > 1}
	go func() {
		err := source.Copy(ctx, revision, options, out.write)
		if ctx.Err() != nil {
			// It was to end.
			err = nil
		}
		writer.CloseWithError(err)
	}()
	s := &stream{Reader: reader, reader: reader, cancel: cancel}
	if options.Follow {
		return s, nil
	}
	buffered := bufio.NewReader(reader)
	s.Reader = buffered
	if _, err := buffered.Peek(1); err != nil && !errors.Is(err, io.EOF) {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// stream is what Open returns.
type stream struct {
	io.Reader
	reader *io.PipeReader
	cancel func()
}

// Close ends the Source, and does not wait for it.
func (s *stream) Close() error {
	s.cancel()
	return s.reader.Close()
}

// prefixed writes lines as text.
type prefixed struct {
	to      io.Writer
	several bool

	// mu keeps lines apart; it guards line, which is reused.
	mu   sync.Mutex
	line bytes.Buffer
}

func (p *prefixed) write(line Line) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.line.Reset()
	if p.several {
		fmt.Fprintf(&p.line, "[%s %s] ", line.Instance, line.Container)
	} else {
		fmt.Fprintf(&p.line, "[%s] ", line.Instance)
	}
	p.line.Write(line.Text)
	p.line.WriteByte('\n')
	_, err := p.to.Write(p.line.Bytes())
	return err
}

// longestLine is the maximum size of a line in bytes. Longer lines are split.
const longestLine = 64 << 10

// CopyLines copies the lines of r, which are those of a container, until its end.
func CopyLines(r io.Reader, instance, container string, write func(Line) error) error {
	lines := bufio.NewReaderSize(r, longestLine)
	for {
		text, _, err := lines.ReadLine()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read log of %s: %w", instance, err)
		}
		if err := write(Line{Instance: instance, Container: container, Text: text}); err != nil {
			return err
		}
	}
}

// Containers are the names of the containers whose logs options ask for.
func Containers(revision *servingv1.Revision, options *servingv1.RevisionLogOptions) []string {
	if options.Container != "" {
		return []string{options.Container}
	}
	var names []string
	for i := range revision.Spec.Containers {
		names = append(names, revision.Spec.Containers[i].Name)
	}
	return names
}
