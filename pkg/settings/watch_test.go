package settings

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
)

// watched is a Store that watches a directory, with its reports.
type watched struct {
	*Store
	dir string

	mu      sync.Mutex
	reports []string
}

// watch creates files in dir, by name, and then watches it.
func watch(t *testing.T, dir string, files map[string]string) *watched {
	t.Helper()
	w := &watched{Store: NewStore(Default("example.com")), dir: dir}
	for name, content := range files {
		w.write(t, name, content)
	}
	if err := w.WatchDir(t.Context(), dir, w); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *watched) Fault(name string, _ types.UID, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.reports = append(w.reports, name+" ok")
		return
	}
	w.reports = append(w.reports, name+": "+err.Error())
}

func (w *watched) Unused(name string, _ types.UID, keys []UnusedKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(keys) == 0 {
		w.reports = append(w.reports, name+" used")
		return
	}
	w.reports = append(w.reports, name+" unused: "+JoinUnused(keys))
}

// reported reports whether the last report starts with prefix and contains part.
func (w *watched) reported(prefix, part string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.reports) == 0 {
		return false
	}
	last := w.reports[len(w.reports)-1]
	return strings.HasPrefix(last, prefix) && strings.Contains(last, part)
}

func (w *watched) write(t *testing.T, name, content string) {
	t.Helper()
	path := filepath.Join(w.dir, name)
	// A reload between the truncation of a file and its write would find it empty.
	if err := os.WriteFile(path+".next", []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".next", path); err != nil {
		t.Fatal(err)
	}
}

// eventually waits until ok returns true.
func (w *watched) eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, 20*time.Second, true, func(context.Context) (bool, error) { return ok(), nil })
	if err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		t.Fatalf("never %s; autoscaler %+v, gc %+v, reports %q", what, w.Get().Autoscaler, w.Get().GC, w.reports)
	}
}

func configMapOf(name, data string) string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: " + name + "\n  namespace: knative-serving\ndata:\n  " + data + "\n"
}

func stableWindow(value string) string {
	return configMapOf("config-autoscaler", "stable-window: "+value)
}

func (w *watched) stableWindowIs(d time.Duration) func() bool {
	return func() bool { return w.Get().Autoscaler.StableWindow == d }
}

func (w *watched) minRevisionsAre(n int) func() bool {
	return func() bool { return w.Get().GC.MinNonActiveRevisions == n }
}

func TestWatchDirReadsAtTheStart(t *testing.T) {
	w := watch(t, t.TempDir(), map[string]string{
		"several.yaml":   stableWindow("30s") + "---\n# nothing\n---\n" + configMapOf("config-gc", `min-non-active-revisions: "3"`),
		"network.yml":    configMapOf("config-network", `rollout-duration: "5"`),
		"foreign.yaml":   configMapOf("config-of-another", "a: b") + "---\n" + strings.Replace(configMapOf("config-defaults", `container-concurrency: "7"`), "kind: ConfigMap", "kind: Secret", 1),
		"notes.txt":      configMapOf("config-defaults", `container-concurrency: "8"`),
		"ignored.yaml~":  "{",
		"list.yaml.orig": "{",
	})
	if !w.stableWindowIs(30*time.Second)() || !w.minRevisionsAre(3)() || w.Get().Network.RolloutDuration != 5*time.Second {
		t.Errorf("settings are %+v", w.Get())
	}
	if got := w.API().ContainerConcurrency; got != 0 {
		t.Errorf("containerConcurrency %d came from an object that is not a ConfigMap", got)
	}
	if len(w.reports) > 0 {
		t.Errorf("reported %q", w.reports)
	}
}

func TestWatchDirThatIsNotThere(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := NewStore(Default("example.com"))
	if err := s.WatchDir(t.Context(), missing, nil); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), missing) {
		t.Errorf("error of a missing directory: %v", err)
	}
	if err := s.WatchDir(t.Context(), file, nil); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("error of a file: %v", err)
	}
}

func TestWatchDirFollowsFiles(t *testing.T) {
	w := watch(t, t.TempDir(), nil)
	changes := make(chan struct{}, 100)
	w.Subscribe(func() { changes <- struct{}{} })

	w.write(t, "a.yaml", stableWindow("20s"))
	w.eventually(t, "created", w.stableWindowIs(20*time.Second))
	<-changes
	w.write(t, "a.yaml", stableWindow("21s"))
	w.eventually(t, "changed", w.stableWindowIs(21*time.Second))
	<-changes
	w.write(t, "next", stableWindow("22s"))
	if err := os.Rename(filepath.Join(w.dir, "next"), filepath.Join(w.dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	w.eventually(t, "renamed over", w.stableWindowIs(22*time.Second))
	<-changes
	if err := os.Rename(filepath.Join(w.dir, "a.yaml"), filepath.Join(w.dir, "b.yml")); err != nil {
		t.Fatal(err)
	}
	w.write(t, "c.yaml", configMapOf("config-gc", `min-non-active-revisions: "1"`))
	w.eventually(t, "another file", w.minRevisionsAre(1))
	if !w.stableWindowIs(22 * time.Second)() {
		t.Errorf("renaming a file changed its settings: %+v", w.Get().Autoscaler)
	}
	if err := os.Remove(filepath.Join(w.dir, "b.yml")); err != nil {
		t.Fatal(err)
	}
	w.eventually(t, "back at the default", w.stableWindowIs(time.Minute))
	if !w.minRevisionsAre(1)() {
		t.Error("removing a file removed the settings of another")
	}
}

// An invalid value keeps all values of its ConfigMap, applies the other ConfigMaps, and is reported once.
func TestWatchDirKeepsTheLastGood(t *testing.T) {
	w := watch(t, t.TempDir(), map[string]string{
		"a.yaml": stableWindow("20s"),
		"b.yaml": configMapOf("config-gc", "min-non-active-revisions: several"),
	})
	if !w.reported("config-gc: ", "'min-non-active-revisions'") || !w.minRevisionsAre(20)() {
		t.Errorf("at the start: %q, %+v", w.reports, w.Get().GC)
	}

	w.write(t, "a.yaml", configMapOf("config-autoscaler", "stable-window: 1s\n  max-scale: \"9\""))
	w.eventually(t, "reported", func() bool { return w.reported("config-autoscaler: ", "'stable-window'") })
	w.write(t, "b.yaml", configMapOf("config-gc", `min-non-active-revisions: "2"`))
	w.eventually(t, "good again", func() bool { return w.reported("config-gc ok", "") })
	if a := w.Get().Autoscaler; a.StableWindow != 20*time.Second || a.MaxScale != 0 || !w.minRevisionsAre(2)() {
		t.Errorf("settings are %+v", w.Get())
	}

	// Invalid YAML.
	w.write(t, "b.yaml", "{")
	w.eventually(t, "reported", func() bool { return w.reported("config-gc: ", "b.yaml") })
	w.write(t, "a.yaml", stableWindow("25s"))
	w.eventually(t, "moved", w.stableWindowIs(25*time.Second))
	w.eventually(t, "good again", func() bool { return w.reported("config-autoscaler ok", "") })
	if !w.minRevisionsAre(2)() {
		t.Errorf("a broken file lost its settings: %+v", w.Get().GC)
	}
	w.write(t, "c.yaml", "{")
	w.eventually(t, "reported by path", func() bool { return w.reported(filepath.Join(w.dir, "c.yaml")+": ", "read ") })

	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.reports) != 6 {
		t.Errorf("%d reports: %q", len(w.reports), w.reports)
	}
}

// The valid ConfigMaps of a file with several are applied.
func TestWatchDirBrokenDocument(t *testing.T) {
	w := watch(t, t.TempDir(), map[string]string{
		"all.yaml": stableWindow("20s") + "---\n" + configMapOf("config-gc", `min-non-active-revisions: "2"`),
	})
	w.write(t, "all.yaml", stableWindow("21s")+"---\nkind: {\n")
	w.eventually(t, "moved", w.stableWindowIs(21*time.Second))
	w.eventually(t, "reported", func() bool { return w.reported("config-gc: ", "all.yaml") })
	if !w.minRevisionsAre(2)() {
		t.Errorf("a broken document lost its settings: %+v", w.Get().GC)
	}
	w.write(t, "all.yaml", stableWindow("21s"))
	w.eventually(t, "gone", w.minRevisionsAre(20))
}

// TestWatchDirUnused checks that keys without effect are reported once.
func TestWatchDirUnused(t *testing.T) {
	w := watch(t, t.TempDir(), map[string]string{"a.yaml": configMapOf("config-autoscaler", `activator-capacity: "100"`)})
	const want = "config-autoscaler unused: 'activator-capacity' (there is no activator)"
	if !w.reported(want, "") {
		t.Errorf("reported %q", w.reports)
	}
	w.write(t, "a.yaml", configMapOf("config-autoscaler", `activator-capacity: "200"`))
	w.write(t, "b.yaml", configMapOf("config-gc", `min-non-active-revisions: "2"`))
	w.eventually(t, "in force", w.minRevisionsAre(2))
	w.write(t, "a.yaml", stableWindow("20s"))
	w.eventually(t, "reported", func() bool { return w.reported("config-autoscaler used", "") })
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.reports) != 2 {
		t.Errorf("reported %q, want the key and its removal", w.reports)
	}
}

func TestWatchDirFileOfAKnownName(t *testing.T) {
	w := watch(t, t.TempDir(), map[string]string{"config-gc.yaml": "{"})
	if !w.reported("config-gc: ", "config-gc.yaml") {
		t.Errorf("reported %q", w.reports)
	}
	w = watch(t, t.TempDir(), map[string]string{"a.yaml": stableWindow("{a: b}")})
	if !w.reported("config-autoscaler: ", "must be a ConfigMap with string values") {
		t.Errorf("reported %q", w.reports)
	}
}

func TestWatchDirRefusesTwoOfAName(t *testing.T) {
	w := watch(t, t.TempDir(), map[string]string{"a.yaml": stableWindow("20s"), "b.yaml": stableWindow("21s")})
	if !w.reported("config-autoscaler: ", "is in "+filepath.Join(w.dir, "a.yaml")+" and "+filepath.Join(w.dir, "b.yaml")) {
		t.Errorf("reported %q", w.reports)
	}
	if !w.stableWindowIs(time.Minute)() {
		t.Errorf("one of them is in effect: %+v", w.Get().Autoscaler)
	}
}

// A mounted ConfigMap: files are links through a directory link that is swapped.
func TestWatchDirMounted(t *testing.T) {
	dir := t.TempDir()
	version := func(name, window string) {
		t.Helper()
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "a.yaml"), []byte(stableWindow(window)), 0o600); err != nil {
			t.Fatal(err)
		}
		link(t, name, filepath.Join(dir, "..data"))
	}
	version("..1", "20s")
	link(t, "..data/a.yaml", filepath.Join(dir, "a.yaml"))
	w := watch(t, dir, nil)
	if !w.stableWindowIs(20 * time.Second)() {
		t.Fatalf("settings are %+v", w.Get().Autoscaler)
	}
	version("..2", "21s")
	w.eventually(t, "swapped", w.stableWindowIs(21*time.Second))
}

// The directory itself is a link that changes, or is replaced.
func TestWatchDirReplaced(t *testing.T) {
	root := t.TempDir()
	version := func(name, window string) string {
		t.Helper()
		dir := filepath.Join(root, name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(stableWindow(window)), 0o600); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	current := filepath.Join(root, "current")
	link(t, version("1", "20s"), current)
	w := watch(t, current, nil)
	link(t, version("2", "21s"), current)
	w.eventually(t, "swapped", w.stableWindowIs(21*time.Second))
	w.write(t, "a.yaml", stableWindow("22s"))
	w.eventually(t, "changed where the link points now", w.stableWindowIs(22*time.Second))

	if err := os.Remove(current); err != nil {
		t.Fatal(err)
	}
	w.eventually(t, "reported", func() bool { return w.reported(current+": ", "read settings") })
	if !w.stableWindowIs(22 * time.Second)() {
		t.Errorf("without a directory: %+v", w.Get().Autoscaler)
	}
	if err := os.Rename(version("3", "23s"), current); err != nil {
		t.Fatal(err)
	}
	w.eventually(t, "there again", w.stableWindowIs(23*time.Second))
	w.eventually(t, "in order", func() bool { return w.reported(current+" ok", "") })
}

// link creates or atomically replaces a symbolic link.
func link(t *testing.T, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path+".next"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".next", path); err != nil {
		t.Fatal(err)
	}
}
