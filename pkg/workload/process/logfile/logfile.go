package process

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

	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

const (
	// maxLogSize is how large a log may become before its end is renamed to <log>.1, and it starts empty.
	// The processes write to the files themselves, so that it may be exceeded between two checks, and that
	// what is written during one may be lost.
	maxLogSize = 10 << 20
	// endedInstances is the number of instances of a revision whose logs are kept after their end.
	endedInstances = 10
	// maxMessage is the maximum size of a last line in bytes.
	maxMessage = 1024
)

// logs are the files that processes write their output to:
//
//	<root>/<namespace>/<revision>/<instance>.stdout.log, .stderr.log
//	<root>/<namespace>/<revision>/<instance>.<container>.stdout.log, .stderr.log  of other than serving containers
//
// They are deleted with their revision, whose name may come back as that of another. While it is there, those of its
// running instances and of the last that have ended are kept, also over restarts of the server.
type logs struct{ root string }

func (l *logs) dir(key workload.Key) string { return filepath.Join(l.root, key.Namespace, key.Name) }

func (l *logs) url(key workload.Key) string {
	u := url.URL{Scheme: "file", Path: filepath.ToSlash(l.dir(key))}
	return u.String()
}

// path returns the path of the file of one output, "stdout" or "stderr".
func (l *logs) path(key workload.Key, instance string, c *container, output string) string {
	if !c.serving {
		instance += "." + c.Name
	}
	return filepath.Join(l.dir(key), instance+"."+output+".log")
}

// open creates the files of a container.
func (l *logs) open(key workload.Key, instance string, c *container) (stdout, stderr *os.File, err error) {
	if err := os.MkdirAll(l.dir(key), 0o700); err != nil {
		return nil, nil, fmt.Errorf("create directory of logs: %w", err)
	}
	// Appending, so that writes to a truncated file continue at its start.
	const flags = os.O_CREATE | os.O_WRONLY | os.O_APPEND
	stdout, err = os.OpenFile(l.path(key, instance, c, "stdout"), flags, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("create log: %w", err)
	}
	stderr, err = os.OpenFile(l.path(key, instance, c, "stderr"), flags, 0o600)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("create log: %w", err), stdout.Close())
	}
	return stdout, stderr, nil
}

// lastLine returns the last line that a container has written to stderr, or else to stdout.
func (l *logs) lastLine(key workload.Key, instance string, c *container) string {
	for _, output := range []string{"stderr", "stdout"} {
		if end, err := tail(l.path(key, instance, c, output), 4*maxMessage); err == nil {
			if line := lastLine(end); line != "" {
				return line
			}
		}
	}
	return ""
}

// lastLine returns the last line that is not blank.
func lastLine(text []byte) string {
	text = bytes.TrimSpace(text)
	text = bytes.TrimSpace(text[bytes.LastIndexByte(text, '\n')+1:])
	return strings.ToValidUTF8(string(text[:min(len(text), maxMessage)]), "")
}

// tail returns the end of a file.
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

// bound cuts off the logs of an instance that have become too large.
func (l *logs) bound(key workload.Key, instance string) error {
	entries, err := os.ReadDir(l.dir(key))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, entry := range entries {
		name := entry.Name()
		if !strings.HasPrefix(name, instance+".") || filepath.Ext(name) != ".log" {
			continue
		}
		if info, err := entry.Info(); err == nil && info.Size() > maxLogSize {
			errs = append(errs, rotate(filepath.Join(l.dir(key), name)))
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

// prune deletes the logs of all but the last instances that have ended.
func (l *logs) prune(key workload.Key, live func(instance string) bool) error {
	entries, err := os.ReadDir(l.dir(key))
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
	instances := map[string]*ended{}
	for _, entry := range entries {
		instance, _, _ := strings.Cut(entry.Name(), ".")
		info, err := entry.Info()
		if err != nil || live(instance) {
			continue
		}
		if instances[instance] == nil {
			instances[instance] = &ended{}
		}
		e := instances[instance]
		e.files = append(e.files, filepath.Join(l.dir(key), entry.Name()))
		if info.ModTime().After(e.last) {
			e.last = info.ModTime()
		}
	}
	if len(instances) <= endedInstances {
		return nil
	}
	names := make([]string, 0, len(instances))
	for name := range instances {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(instances[b].last.Compare(instances[a].last), cmp.Compare(a, b))
	})
	var errs []error
	for _, name := range names[endedInstances:] {
		for _, file := range instances[name].files {
			errs = append(errs, os.Remove(file))
		}
	}
	return errors.Join(errs...)
}

// remove deletes all logs of a revision.
func (l *logs) remove(key workload.Key) error {
	if err := os.RemoveAll(l.dir(key)); err != nil {
		return err
	}
	// The directory of a namespace is deleted with its last revision.
	_ = os.Remove(filepath.Dir(l.dir(key)))
	return nil
}
