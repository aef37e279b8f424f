package logfile

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/apimachinery/pkg/types"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/revisionlog"
)

// Source reads the logs of Revisions. Each container has two logs, stdout and stderr, to which options apply separately.
// Lines have no timestamps: sinceSeconds omits logs that have not changed since.
type Source struct {
	Files *Files
	// Serving returns the name of the serving container.
	Serving func(revision *servingv1.Revision) string
}

// Copy implements revisionlog.Source.
func (s Source) Copy(ctx context.Context, revision *servingv1.Revision, options *servingv1.RevisionLogOptions, write func(revisionlog.Line) error) error {
	dir := s.Files.Dir(types.NamespacedName{Namespace: revision.Namespace, Name: revision.Name})
	reader := &logReader{
		serving: s.Serving(revision),
		wanted:  revisionlog.Containers(revision, options), options: options, write: write, offsets: map[string]int64{},
	}
	if !options.Follow {
		return reader.readAll(dir, true)
	}
	// The first backend may not have started yet.
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create directory of logs: %w", err)
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch logs: %w", err)
	}
	defer watcher.Close()
	// Watching before reading avoids missing lines that are written in between.
	if err := watcher.Add(dir); err != nil {
		return fmt.Errorf("watch logs in %s: %w", dir, err)
	}
	if err := reader.readAll(dir, true); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case event := <-watcher.Events:
			if err := reader.read(event.Name, false); err != nil {
				return err
			}
		case _, open := <-watcher.Errors:
			if !open {
				return nil
			}
			// Events may be lost.
			if err := reader.readAll(dir, false); err != nil {
				return err
			}
		}
	}
}

// logReader reads the lines of all files in a directory.
type logReader struct {
	// serving is the name of the serving container, wanted the names of the selected containers.
	serving string
	wanted  []string
	options *servingv1.RevisionLogOptions
	write   func(revisionlog.Line) error
	// offsets are the offsets of unread lines, by path.
	offsets map[string]int64
}

// readAll reads all files, ordered by their last change.
func (r *logReader) readAll(dir string, first bool) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read logs: %w", err)
	}
	type file struct {
		path     string
		modified time.Time
	}
	var files []file
	for _, entry := range entries {
		// read skips files that have been deleted.
		if info, err := entry.Info(); err == nil {
			files = append(files, file{filepath.Join(dir, entry.Name()), info.ModTime()})
		}
	}
	slices.SortFunc(files, func(a, b file) int { return cmp.Or(a.modified.Compare(b.modified), cmp.Compare(a.path, b.path)) })
	for _, f := range files {
		if err := r.read(f.path, first); err != nil {
			return err
		}
	}
	return nil
}

// read reads the complete lines that were appended to a file since the last call. The options apply to the first call.
func (r *logReader) read(path string, first bool) error {
	backend, container, ok := r.of(filepath.Base(path))
	if !ok {
		return nil
	}
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		delete(r.offsets, path)
		return nil
	}
	if err != nil {
		return fmt.Errorf("read log: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("read log: %w", err)
	}
	offset := r.offsets[path]
	if info.Size() < offset {
		// The file was truncated.
		offset = 0
	}
	text := make([]byte, info.Size()-offset)
	n, err := file.ReadAt(text, offset)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read log: %w", err)
	}
	text = text[:n]
	if r.options.Follow {
		// The last line may be incomplete.
		text = text[:bytes.LastIndexByte(text, '\n')+1]
	}
	r.offsets[path] = offset + int64(len(text))
	if first {
		text = r.bounded(text, info.ModTime())
	}
	return revisionlog.CopyLines(bytes.NewReader(text), backend, container, r.write)
}

// of returns the backend and the container of a file, and reports whether the container is selected.
func (r *logReader) of(name string) (backend, container string, ok bool) {
	for _, output := range []string{".stdout.log", ".stderr.log"} {
		if base, is := strings.CutSuffix(name, output); is {
			if backend, container, ok = strings.Cut(base, "."); !ok {
				container = r.serving
			}
			return backend, container, slices.Contains(r.wanted, container)
		}
	}
	return "", "", false
}

// bounded returns the part of a log that the options select.
func (r *logReader) bounded(text []byte, modified time.Time) []byte {
	if since := r.options.SinceSeconds; since != nil && time.Since(modified) > time.Duration(*since)*time.Second {
		return nil
	}
	lines := r.options.TailLines
	if lines == nil {
		return text
	}
	begin := len(text)
	for left := *lines; left > 0 && begin > 0; left-- {
		begin = bytes.LastIndexByte(text[:begin-1], '\n') + 1
	}
	return text[begin:]
}
