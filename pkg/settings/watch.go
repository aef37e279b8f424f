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

// Changes of files come in bursts. The files are read after a quiet period, but at most after a bound.
const (
	quietPeriod  = 100 * time.Millisecond
	longestBurst = time.Second
)

// WatchDir applies the ConfigMaps in the files of a directory, whenever they change, until ctx is canceled. Each *.yaml or *.yml file
// may contain several, recognized by kind and name; other objects are ignored. The directory may be a mounted ConfigMap or a
// symbolic link that changes.
//
// An invalid ConfigMap keeps its last valid settings, initially the defaults. The log and reporter report the error once. It
// returns an error if the directory cannot initially be watched or read.
func (s *Store) WatchDir(ctx context.Context, dir string, reporter Reporter) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("find settings directory: %w", err)
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch settings in %s: %w", dir, err)
	}
	w := &dirWatch{store: s, dir: configDir{path: dir}, watcher: watcher, reports: newReports(reporter)}
	if err := w.start(); err != nil {
		return errors.Join(fmt.Errorf("read settings in %s: %w", dir, err), watcher.Close())
	}
	go w.run(ctx)
	return nil
}

// dirWatch updates a Store from a directory.
type dirWatch struct {
	store   *Store
	dir     configDir
	watcher *fsnotify.Watcher
	reports *reports
}

func (w *dirWatch) start() error {
	// Watch first, so that changes during the read cause another one.
	if err := w.watcher.Add(w.dir.path); err != nil {
		return err
	}
	// A watch follows links to the current target. A watch of the parent directory detects its replacement.
	if err := w.watcher.Add(filepath.Dir(w.dir.path)); err != nil {
		klog.V(2).InfoS("Failed to watch parent of settings directory; its replacement will not be detected", "dir", w.dir.path, "reason", err.Error())
	}
	contents, err := w.dir.read()
	if err != nil {
		return err
	}
	w.apply(contents)
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
			// Events may have been lost, so read the directory.
			klog.ErrorS(err, "Failed to watch settings", "dir", w.dir.path)
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

// concerns reports whether an event may have changed the files. It restarts the watch if the directory was replaced.
func (w *dirWatch) concerns(event fsnotify.Event) bool {
	if event.Name != w.dir.path {
		return filepath.Dir(event.Name) == w.dir.path && event.Op != fsnotify.Chmod
	}
	if err := w.watcher.Remove(w.dir.path); err != nil && !errors.Is(err, fsnotify.ErrNonExistentWatch) {
		klog.V(2).InfoS("Failed to stop watching replaced settings directory", "dir", w.dir.path, "reason", err.Error())
	}
	if err := w.watcher.Add(w.dir.path); err != nil {
		klog.V(2).InfoS("Waiting for settings directory", "dir", w.dir.path, "reason", err.Error())
	}
	return true
}

// reload reads the directory. If it does not exist, the settings do not change.
func (w *dirWatch) reload() {
	contents, err := w.dir.read()
	if err != nil {
		w.report(map[string]error{w.dir.path: fmt.Errorf("read settings: %w", err)})
		return
	}
	w.apply(contents)
}

func (w *dirWatch) apply(contents *dirContents) {
	faults := contents.faults
	maps.Copy(faults, w.store.Update(contents.changes()))
	w.report(faults)
	for _, name := range Names() {
		if !contents.broken.Has(name) {
			w.reports.unusedKeys(name, "", Unused(name, contents.data[name]))
		}
	}
}

// report reports new errors and corrected ones.
func (w *dirWatch) report(faults map[string]error) {
	for _, name := range slices.Sorted(maps.Keys(w.reports.faults)) {
		if faults[name] == nil {
			w.reports.fault(name, "", nil)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(faults)) {
		w.reports.fault(name, "", faults[name])
	}
}
