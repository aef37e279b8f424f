package process

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/lockfile"
)

// ownerVariable marks the processes that belong to a Runtime: <id>@<directory>/<backend>.
const ownerVariable = "KNATIVE_STANDALONE_INSTANCE"

// owner identifies the processes of a data directory over restarts of the server. PIDs are reused, so a process is
// identified by a mark in its environment, which descendants inherit, or by a record of its PID and start time, for
// programs that overwrite their environment.
type owner struct {
	// id is random, because other machines or containers may use the same path.
	id   string
	mark string
	lock *fileutil.LockedFile
	// records is a directory with an empty file <pid>.<start time> for each started process.
	records string
}

// newOwner locks the directory.
func newOwner(dir string) (*owner, error) {
	lock, err := lockfile.Acquire(filepath.Join(dir, "lock"))
	if errors.Is(err, lockfile.ErrHeld) {
		return nil, fmt.Errorf("another server uses %s for its processes: stop it, or choose another directory", dir)
	}
	if err != nil {
		return nil, fmt.Errorf("lock directory of processes: %w", err)
	}
	o := &owner{lock: lock}
	if err := o.load(dir); err != nil {
		o.close()
		return nil, err
	}
	return o, nil
}

func (o *owner) load(dir string) error {
	path := filepath.Join(dir, "id")
	id, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && len(id) == 0:
		id = []byte(uuid.NewUUID())
		if err := os.WriteFile(path, id, 0o600); err != nil {
			return fmt.Errorf("write ID of processes: %w", err)
		}
	case err != nil:
		return fmt.Errorf("read ID of processes: %w", err)
	}
	o.id = string(id)
	o.mark = ownerVariable + "=" + o.id + "@" + dir + "/"
	// Start times are relative to the boot of the machine.
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return fmt.Errorf("read boot ID: %w", err)
	}
	o.records = filepath.Join(dir, "processes", strings.TrimSpace(string(boot)))
	if err := os.MkdirAll(o.records, 0o700); err != nil {
		return fmt.Errorf("create records of processes: %w", err)
	}
	return nil
}

func (o *owner) close() { _ = o.lock.Close() }

// variable returns the environment variable that marks the processes of a backend.
func (o *owner) variable(backend string) string { return o.mark + backend }

// record writes the record of a process and returns a function that deletes it. Errors are ignored, because the mark also
// identifies the process.
func (o *owner) record(pid int) (remove func()) {
	start, err := startTime(pid)
	if err != nil {
		return func() {}
	}
	path := filepath.Join(o.records, strconv.Itoa(pid)+"."+start)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return func() {}
	}
	return func() { _ = os.Remove(path) }
}

// startTime returns the start time of a process, in clock ticks since boot.
func startTime(pid int) (string, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	// The program's name, in parentheses, may contain any character. Field 22 is the 20th after it. Zombies (Z) and dead
	// processes (X) have ended.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return "", os.ErrProcessDone
	}
	return fields[19], nil
}

// killLeftovers kills all processes of an earlier Runtime with the same directory and waits until they have exited.
func (o *owner) killLeftovers(logger klog.Logger) {
	const timeout = 5 * time.Second
	for deadline := time.Now().Add(timeout); ; time.Sleep(time.Millisecond) {
		recorded, err := o.killRecorded()
		if err != nil {
			logger.Error(err, "Failed to read records of processes")
		}
		marked := o.killMarked(func(string) bool { return false })
		if recorded+marked == 0 {
			break
		}
		if time.Now().After(deadline) {
			logger.Info("Processes of an earlier server did not exit", "recorded", recorded, "marked", marked)
			break
		}
	}
	if err := o.deleteRecords(); err != nil {
		logger.Error(err, "Failed to delete records of processes")
	}
}

// killRecorded kills all recorded processes with their groups, and returns their number.
func (o *owner) killRecorded() (int, error) {
	entries, err := os.ReadDir(o.records)
	if err != nil {
		return 0, err
	}
	killed := 0
	for _, entry := range entries {
		number, start, _ := strings.Cut(entry.Name(), ".")
		pid, err := strconv.Atoi(number)
		if err != nil || pid <= 1 {
			continue
		}
		owned := func() bool {
			now, err := startTime(pid)
			return err == nil && now == start
		}
		if owned() {
			killed += kill(pid, owned)
		}
	}
	return killed, nil
}

// deleteRecords deletes all records, including records of earlier boots.
func (o *owner) deleteRecords() error {
	all := filepath.Dir(o.records)
	return errors.Join(os.RemoveAll(all), os.MkdirAll(o.records, 0o700))
}

// killStrays kills marked processes whose backend is not live.
func (o *owner) killStrays(logger klog.Logger, live func(backend string) bool) {
	if n := o.killMarked(live); n > 0 {
		logger.Info("Killed orphaned processes", "count", n)
	}
}

// killMarked kills the marked processes whose backend is not live, and returns their number.
func (o *owner) killMarked(live func(backend string) bool) int {
	proc, err := os.Open("/proc")
	if err != nil {
		return 0
	}
	defer proc.Close()
	// The entries that were read before an error are valid.
	names, _ := proc.Readdirnames(-1)
	killed := 0
	var buffer bytes.Buffer
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == os.Getpid() {
			continue
		}
		owned := func() bool {
			backend, ok := o.backend(pid, &buffer)
			return ok && !live(backend)
		}
		if owned() {
			killed += kill(pid, owned)
		}
	}
	return killed
}

// backend returns the name of the backend in the mark of a process.
func (o *owner) backend(pid int, buffer *bytes.Buffer) (string, bool) {
	file, err := os.Open(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return "", false
	}
	defer file.Close()
	buffer.Reset()
	// Processes that ended, and processes of other users, cannot be read.
	if _, err := buffer.ReadFrom(file); err != nil {
		return "", false
	}
	for rest := buffer.Bytes(); len(rest) > 0; {
		var variable []byte
		variable, rest, _ = bytes.Cut(rest, []byte{0})
		if backend, ok := bytes.CutPrefix(variable, []byte(o.mark)); ok {
			return string(backend), true
		}
	}
	return "", false
}

// kill kills a process, and its group if it is the leader, if owned returns true. It returns the number of processes killed,
// 0 or 1.
func kill(pid int, owned func() bool) int {
	// From here on p refers to this process even if the PID is reused.
	p, err := os.FindProcess(pid)
	if err != nil {
		return 0
	}
	defer func() { _ = p.Release() }()
	if !owned() {
		return 0
	}
	if group, err := syscall.Getpgid(pid); err == nil && group == pid {
		_ = syscall.Kill(-pid, syscall.SIGKILL)
	}
	_ = p.Kill()
	return 1
}
