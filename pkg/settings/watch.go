package settings

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"
)

// Files change in bursts. They are read once nothing happened for a while, but within a bound.
const (
	quietPeriod  = 100 * time.Millisecond
	longestBurst = time.Second
)

// WatchDir takes over the ConfigMaps in the files of a directory, and again whenever they change, until ctx
// ends. Each *.yaml or *.yml file may hold several, recognized by kind and name; all else is ignored. The
// directory may be a mounted ConfigMap or a symbolic link that moves.
//
// A ConfigMap with a fault keeps the settings that it last had, which are the defaults at first; the log and
// reporter name the fault, once. The error says that the directory cannot be watched or read at the start.
func (s *Store) WatchDir(ctx context.Context, dir string, reporter Reporter) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("finding the directory of the settings: %w", err)
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching the settings in %s: %w", dir, err)
	}
	w := &dirWatch{store: s, dir: configDir{path: dir}, watcher: watcher, reports: newReports(reporter)}
	if err := w.start(); err != nil {
		return errors.Join(fmt.Errorf("reading the settings in %s: %w", dir, err), watcher.Close())
	}
	go w.run(ctx)
	return nil
}

// dirWatch keeps a Store in step with a directory.
type dirWatch struct {
	store   *Store
	dir     configDir
	watcher *fsnotify.Watcher
	reports *reports
}

func (w *dirWatch) start() error {
	// The watch comes first: what changes while the files are read is read again.
	if err := w.watcher.Add(w.dir.path); err != nil {
		return err
	}
	// A watch follows links to what is there now. Its parent tells when that is replaced.
	if err := w.watcher.Add(filepath.Dir(w.dir.path)); err != nil {
		klog.V(2).InfoS("Not noticing when the directory of the settings is replaced", "dir", w.dir.path, "reason", err.Error())
	}
	contents, err := w.dir.read()
	if err != nil {
		return err
	}
	w.take(contents)
	return nil
}

func (w *dirWatch) run(ctx context.Context) {
	defer w.watcher.Close()
	var quiet, latest <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case event := <-w.watcher.Events:
			if !w.concerns(event) {
				continue
			}
		case err := <-w.watcher.Errors:
			// Events may be lost, so look.
			klog.ErrorS(err, "Watching the settings", "dir", w.dir.path)
		case <-quiet:
			w.reload()
			quiet, latest = nil, nil
			continue
		case <-latest:
			w.reload()
			quiet, latest = nil, nil
			continue
		}
		quiet = time.After(quietPeriod)
		if latest == nil {
			latest = time.After(longestBurst)
		}
	}
}

// concerns tells whether the files may differ after an event, and watches the directory anew if it is another.
func (w *dirWatch) concerns(event fsnotify.Event) bool {
	if event.Name != w.dir.path {
		return filepath.Dir(event.Name) == w.dir.path && event.Op != fsnotify.Chmod
	}
	if err := w.watcher.Remove(w.dir.path); err != nil && !errors.Is(err, fsnotify.ErrNonExistentWatch) {
		klog.V(2).InfoS("Not ending the watch of the former settings", "dir", w.dir.path, "reason", err.Error())
	}
	if err := w.watcher.Add(w.dir.path); err != nil {
		klog.V(2).InfoS("Waiting for the directory of the settings", "dir", w.dir.path, "reason", err.Error())
	}
	return true
}

// reload reads the directory. While there is none, everything stays.
func (w *dirWatch) reload() {
	contents, err := w.dir.read()
	if err != nil {
		w.tell(map[string]error{w.dir.path: fmt.Errorf("reading the settings: %w", err)})
		return
	}
	w.take(contents)
}

func (w *dirWatch) take(contents *dirContents) {
	faults := contents.faults
	maps.Copy(faults, w.store.Update(contents.changes()))
	w.tell(faults)
	for _, name := range Names() {
		if !contents.broken.Has(name) {
			w.reports.unusedKeys(name, "", Unused(name, contents.data[name]))
		}
	}
}

// tell reports faults that are new, and those that are gone.
func (w *dirWatch) tell(faults map[string]error) {
	for _, name := range slices.Sorted(maps.Keys(w.reports.faults)) {
		if faults[name] == nil {
			w.reports.fault(name, "", nil)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(faults)) {
		w.reports.fault(name, "", faults[name])
	}
}
