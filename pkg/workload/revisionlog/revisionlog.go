// Package revisionlog reads the logs of all backends of a Revision as one stream.
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
	// Instance and Container name the origin of the line.
	Instance, Container string
	// Text has no line ending. It is valid only during the call.
	Text []byte
}

// Source provides the logs of Revisions.
type Source interface {
	// Copy calls write with the lines that options select: of one backend after the other, or with options.Follow of all at
	// the same time, until ctx is canceled. write may be called concurrently. Copy returns after the last call, with the
	// error of write if it failed. A Revision without backends has no lines.
	Copy(ctx context.Context, revision *servingv1.Revision, options *servingv1.RevisionLogOptions, write func(Line) error) error
}

// ErrNoSource is returned while this server cannot read logs.
var ErrNoSource = errors.New("the logs of revisions are not available on this server")

// Late forwards to a Source that is set later. The zero value has none.
type Late struct{ source atomic.Pointer[Source] }

// Set sets the Source.
func (l *Late) Set(source Source) { l.source.Store(&source) }

// Copy forwards to the Source. It fails with ErrNoSource before Set.
func (l *Late) Copy(ctx context.Context, revision *servingv1.Revision, options *servingv1.RevisionLogOptions, write func(Line) error) error {
	source := l.source.Load()
	if source == nil {
		return ErrNoSource
	}
	return (*source).Copy(ctx, revision, options, write)
}

// Open returns the lines of a Revision's logs as text. Each begins with "[instance] ", or with "[instance container] " if
// several containers are selected. Without options.Follow, Open fails if the Source fails before the first line. Close
// stops the Source.
func Open(ctx context.Context, source Source, revision *servingv1.Revision, options *servingv1.RevisionLogOptions) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(ctx)
	reader, writer := io.Pipe()
	out := &prefixed{to: writer, several: options.Container == "" && len(revision.Spec.Containers) > 1}
	go func() {
		err := source.Copy(ctx, revision, options, out.write)
		if ctx.Err() != nil {
			// The caller canceled it.
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

// stream is the reader that Open returns.
type stream struct {
	io.Reader
	reader *io.PipeReader
	cancel func()
}

// Close stops the Source without waiting for it.
func (s *stream) Close() error {
	s.cancel()
	return s.reader.Close()
}

// prefixed writes lines as text with their origin.
type prefixed struct {
	to      io.Writer
	several bool

	// mu serializes lines and guards line, which is reused.
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

// CopyLines calls write with the lines of r, the log of a container, until its end.
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

// Containers returns the names of the containers that options select.
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
