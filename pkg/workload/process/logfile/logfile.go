// Package logfile writes the output of processes to files, bounds their size, and reads them as the logs of Revisions.
package logfile

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/knative-apiserver/knative-apiserver/pkg/shorten"
)

const (
	// maxLogSize is the size at which the end of a log is moved to <log>.1 and the log is truncated. Processes write to the
	// files directly: a log may exceed this size between two checks, and lines written during a check may be lost.
	maxLogSize = 10 << 20
	// endedBackends is the number of stopped backends of a Revision whose logs are kept.
	endedBackends = 10
	// maxMessage bounds the last line, in bytes.
	maxMessage = 1024
)

// Files are the files that processes write their output to:
//
//	<root>/<namespace>/<revision>/<backend>.stdout.log, .stderr.log
//	<root>/<namespace>/<revision>/<backend>.<container>.stdout.log, .stderr.log  of containers other than the serving one
//
// They are deleted with their Revision. Until then, the files of running backends and of the last stopped ones are kept,
// also over restarts of the server. Methods expect an empty container name for the serving container.
type Files struct{ Root string }

// Dir returns the directory of the logs of a Revision.
func (l *Files) Dir(key types.NamespacedName) string {
	return filepath.Join(l.Root, key.Namespace, key.Name)
}

// URL returns the URL of the directory of the logs of a Revision.
func (l *Files) URL(key types.NamespacedName) string {
	u := url.URL{Scheme: "file", Path: filepath.ToSlash(l.Dir(key))}
	return u.String()
}

// path returns the path of the file of one output, "stdout" or "stderr".
func (l *Files) path(key types.NamespacedName, backend, container, output string) string {
	if container != "" {
		backend += "." + container
	}
	return filepath.Join(l.Dir(key), backend+"."+output+".log")
}

// Open creates the files of a container.
func (l *Files) Open(key types.NamespacedName, backend, container string) (stdout, stderr *os.File, err error) {
	if err := os.MkdirAll(l.Dir(key), 0o700); err != nil {
		return nil, nil, fmt.Errorf("create directory of logs: %w", err)
	}
	// Writes after truncation continue at the start of the file.
	const flags = os.O_CREATE | os.O_WRONLY | os.O_APPEND
	stdout, err = os.OpenFile(l.path(key, backend, container, "stdout"), flags, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("create log: %w", err)
	}
	stderr, err = os.OpenFile(l.path(key, backend, container, "stderr"), flags, 0o600)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("create log: %w", err), stdout.Close())
	}
	return stdout, stderr, nil
}

// LastLine returns the last line that a container has written to stderr, or else to stdout.
func (l *Files) LastLine(key types.NamespacedName, backend, container string) string {
	for _, output := range []string{"stderr", "stdout"} {
		if end, err := tail(l.path(key, backend, container, output), 4*maxMessage); err == nil {
			if line := lastLine(end); line != "" {
				return line
			}
		}
	}
	return ""
}

// lastLine returns the last line of a text that is not blank.
func lastLine(text []byte) string {
	text = bytes.TrimSpace(text)
	text = bytes.TrimSpace(text[bytes.LastIndexByte(text, '\n')+1:])
	return shorten.Text(strings.ToValidUTF8(string(text), ""), maxMessage)
}

// tail returns up to size bytes from the end of a file.
func tail(path string, size int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if _, err := file.Seek(max(0, info.Size()-size), io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(file, size))
}

// Bound truncates the logs of a backend that exceed maxLogSize.
func (l *Files) Bound(key types.NamespacedName, backend string) error {
	entries, err := os.ReadDir(l.Dir(key))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, entry := range entries {
		name := entry.Name()
		if !strings.HasPrefix(name, backend+".") || filepath.Ext(name) != ".log" {
			continue
		}
		if info, err := entry.Info(); err == nil && info.Size() > maxLogSize {
			errs = append(errs, rotate(filepath.Join(l.Dir(key), name)))
		}
	}
	return errors.Join(errs...)
}

func rotate(path string) error {
	end, err := tail(path, maxLogSize)
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(path+".1", end, 0o600), os.Truncate(path, 0))
}

// Prune deletes the logs of stopped backends, except for the most recent ones.
func (l *Files) Prune(key types.NamespacedName, live func(backend string) bool) error {
	entries, err := os.ReadDir(l.Dir(key))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	type ended struct {
		files []string
		last  time.Time
	}
	backends := map[string]*ended{}
	for _, entry := range entries {
		backend, _, _ := strings.Cut(entry.Name(), ".")
		info, err := entry.Info()
		if err != nil || live(backend) {
			continue
		}
		if backends[backend] == nil {
			backends[backend] = &ended{}
		}
		e := backends[backend]
		e.files = append(e.files, filepath.Join(l.Dir(key), entry.Name()))
		if info.ModTime().After(e.last) {
			e.last = info.ModTime()
		}
	}
	if len(backends) <= endedBackends {
		return nil
	}
	names := make([]string, 0, len(backends))
	for name := range backends {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(backends[b].last.Compare(backends[a].last), cmp.Compare(a, b))
	})
	var errs []error
	for _, name := range names[endedBackends:] {
		for _, file := range backends[name].files {
			errs = append(errs, os.Remove(file))
		}
	}
	return errors.Join(errs...)
}

// Remove deletes all logs of a Revision.
func (l *Files) Remove(key types.NamespacedName) error {
	if err := os.RemoveAll(l.Dir(key)); err != nil {
		return err
	}
	// This deletes the directory of the namespace if it is empty.
	_ = os.Remove(filepath.Dir(l.Dir(key)))
	return nil
}
