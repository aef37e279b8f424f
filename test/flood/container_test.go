package flood

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// container is a memory cgroup with a limit, like the cgroup of a container.
type container struct {
	// dir is the directory of the cgroup. It is empty if the test may not create one.
	dir string
	// parent is the directory of the cgroup that is not limited.
	parent string
	// events is the file that counts OOM kills, peak the file with the largest use.
	events, peak string
}

// newContainer creates a cgroup with a limit, of version 1 or 2. Without rights to do so, it returns a container without one.
func newContainer(t *testing.T, limit int64) *container {
	t.Helper()
	c, err := createContainer(limit)
	if err != nil {
		t.Logf("no cgroup can be created (%v): the memory of the server is measured, but not limited by the kernel", err)
		return &container{}
	}
	t.Cleanup(func() {
		if err := os.Remove(c.dir); err != nil {
			t.Logf("remove the cgroup: %v", err)
		}
	})
	return c
}

func createContainer(limit int64) (*container, error) {
	content, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	name := "knative-apiserver-flood-" + strconv.Itoa(os.Getpid())
	var errs []error
	for line := range strings.Lines(string(content)) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch controllers, own, _ := strings.Cut(rest, ":"); controllers {
		case "memory":
			parent := filepath.Join("/sys/fs/cgroup/memory", own)
			c := &container{dir: filepath.Join(parent, name), parent: parent, events: "memory.oom_control", peak: "memory.max_usage_in_bytes"}
			errs = append(errs, c.create("memory.limit_in_bytes", limit))
			if errs[len(errs)-1] == nil {
				return c, nil
			}
		case "":
			// A cgroup with processes may have no limited children, except for the root: then a sibling is created.
			parent := filepath.Join("/sys/fs/cgroup", own)
			for _, above := range []string{parent, filepath.Dir(parent)} {
				c := &container{dir: filepath.Join(above, name), parent: parent, events: "memory.events", peak: "memory.peak"}
				errs = append(errs, c.create("memory.max", limit))
				if errs[len(errs)-1] == nil {
					return c, nil
				}
			}
		}
	}
	return nil, errors.Join(append(errs, errors.New("no memory cgroup"))...)
}

// create creates the cgroup and writes its limit.
func (c *container) create(file string, limit int64) error {
	if err := os.Mkdir(c.dir, 0o755); err != nil {
		return err
	}
	// The kernel creates the file, or the memory controller is not enabled.
	out, err := os.OpenFile(filepath.Join(c.dir, file), os.O_WRONLY, 0)
	if err == nil {
		_, err = out.WriteString(strconv.FormatInt(limit, 10))
		err = errors.Join(err, out.Close())
	}
	if err != nil {
		return errors.Join(err, os.Remove(c.dir))
	}
	return nil
}

// moveTo is a shell script that moves the shell to the cgroup in its first argument, and executes the other arguments.
const moveTo = `echo $$ >"$0/cgroup.procs" && exec "$@"`

// wrapper returns the command that executes a command line in the cgroup.
func (c *container) wrapper() []string { return shell(c.dir) }

// outside returns the command that executes a command line outside of the cgroup.
func (c *container) outside() []string { return shell(c.parent) }

func shell(dir string) []string {
	if dir == "" {
		return nil
	}
	return []string{"/bin/sh", "-c", moveTo, dir}
}

// kills returns the number of processes that the kernel killed for exceeding the limit.
func (c *container) kills() (int, error) {
	if c.dir == "" {
		return 0, nil
	}
	return field(filepath.Join(c.dir, c.events), "oom_kill")
}

// mostUsed returns the largest use of the cgroup in bytes, caches of files included, or -1.
func (c *container) mostUsed() int64 {
	content, err := os.ReadFile(filepath.Join(c.dir, c.peak))
	if err != nil {
		return -1
	}
	used, err := strconv.ParseInt(strings.TrimSpace(string(content)), 10, 64)
	if err != nil {
		return -1
	}
	return used
}

// residentBytes returns the resident set size (RSS) of a process.
func residentBytes(pid int) (int64, error) {
	kibibytes, err := field(fmt.Sprintf("/proc/%d/status", pid), "VmRSS:")
	return int64(kibibytes) << 10, err
}

// field returns the number after a word that begins a line of a file.
func field(path, word string) (int, error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	scanner := bufio.NewScanner(file)
	for scanner.Scan() {
		if fields := strings.Fields(scanner.Text()); len(fields) > 1 && fields[0] == word {
			return strconv.Atoi(fields[1])
		}
	}
	return 0, errors.Join(scanner.Err(), fmt.Errorf("%s has no line %s", path, word))
}
