package spawn

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// launchFD and resultFD are the descriptors from which the helper reads its launch and to which it writes its error.
	launchFD, resultFD = 3, 4
	// maxEntries bounds the entries of a directory that a view replaces.
	maxEntries = 4096
)

// MountsSupported reports whether programs may have mounts on this system.
const MountsSupported = true

// Helper executes the program of a container if this process was started for that purpose, and returns otherwise. Call it
// first in main.
func Helper() {
	if len(os.Args) == 0 || os.Args[0] != helperName {
		return
	}
	// The parent death signal belongs to the thread.
	goruntime.LockOSThread()
	unix.CloseOnExec(launchFD)
	unix.CloseOnExec(resultFD)
	err := become(os.NewFile(launchFD, "launch"))
	fmt.Fprint(os.NewFile(resultFD, "result"), err)
	os.Exit(127)
}

// become executes the program of a container. It returns only on errors.
func become(in io.Reader) error {
	var l launch
	if err := json.NewDecoder(in).Decode(&l); err != nil {
		return fmt.Errorf("read launch: %w", err)
	}
	if l.Dir == "" {
		var err error
		if l.Dir, err = os.Getwd(); err != nil {
			return fmt.Errorf("find working directory: %w", err)
		}
	}
	if err := mountAll(&l); err != nil {
		return err
	}
	if err := os.Chdir(l.Dir); err != nil {
		return fmt.Errorf("change working directory: %w", err)
	}
	if l.User != nil {
		if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(int(l.User.GID)), syscall.Setuid(int(l.User.UID))); err != nil {
			return fmt.Errorf("change to user %d: %w", l.User.UID, err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	// Changing the user has cleared the parent death signal.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("set parent death signal: %w", err)
	}
	if os.Getppid() != l.Parent {
		return errors.New("the server has ended")
	}
	name, err := lookup(l.Argv[0], l.Env)
	if err != nil {
		return err
	}
	return &os.PathError{Op: "exec", Path: name, Err: syscall.Exec(name, l.Argv, l.Env)}
}

// tree mounts volumes in the mount namespace of this process.
type tree struct {
	staging string
	// views are the directories that were replaced and accept new entries.
	views []string
	// writable and readOnly are the targets mounted so far.
	writable, readOnly []string
}

func mountAll(l *launch) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); errors.Is(err, fs.ErrPermission) {
		return ErrNoNamespaces
	} else if err != nil {
		return fmt.Errorf("stop propagation of mounts: %w", err)
	}
	// A mount may hide the source of a later one, so all sources are opened first.
	sources := make([]source, len(l.Mounts))
	for i := range l.Mounts {
		var err error
		if sources[i], err = open(&l.Mounts[i]); err != nil {
			return fmt.Errorf("mount at %s: %w", l.Mounts[i].Target, err)
		}
	}
	t := &tree{staging: l.Staging}
	for i := range l.Mounts {
		if err := t.mount(sources[i], &l.Mounts[i]); err != nil {
			return fmt.Errorf("mount at %s: %w", l.Mounts[i].Target, err)
		}
	}
	return nil
}

// source is a detached mount.
type source struct {
	fd  int
	dir bool
}

// open returns the source of a mount. Links in a volume must not escape it.
func open(m *Mount) (source, error) {
	root, err := os.OpenRoot(m.Volume)
	if err != nil {
		return source{}, err
	}
	defer root.Close()
	name := "."
	if m.SubPath != "" {
		name = filepath.Clean(m.SubPath)
	}
	// Without O_NONBLOCK, opening a pipe would wait for a writer.
	const flags = os.O_RDONLY | syscall.O_NONBLOCK
	f, err := root.OpenFile(name, flags, 0)
	if errors.Is(err, fs.ErrNotExist) && m.Writable {
		if err = root.MkdirAll(name, 0o777); err == nil {
			f, err = root.OpenFile(name, flags, 0)
		}
	}
	if err != nil {
		return source{}, fmt.Errorf("subPath %q: %w", m.SubPath, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return source{}, err
	}
	if !info.IsDir() && !info.Mode().IsRegular() {
		return source{}, fmt.Errorf("subPath %q is neither a file nor a directory", m.SubPath)
	}
	fd, err := unix.OpenTree(int(f.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return source{}, os.NewSyscallError("open_tree", err)
	}
	attributes := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	if m.ReadOnly {
		attributes.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attributes); err != nil {
		return source{}, os.NewSyscallError("mount_setattr", err)
	}
	return source{fd: fd, dir: info.IsDir()}, nil
}

func attach(fd int, target string) error {
	return os.NewSyscallError("move_mount", unix.MoveMount(fd, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH))
}

// mount attaches a source at its target.
func (t *tree) mount(s source, m *Mount) error {
	defer unix.Close(s.fd)
	target, err := t.create(m.Target, s.dir)
	if err != nil {
		return err
	}
	info, err := os.Stat(target)
	if err != nil {
		return err
	}
	if info.IsDir() != s.dir {
		if s.dir {
			return errors.New("a directory cannot be mounted over a file")
		}
		return errors.New("a file cannot be mounted over a directory")
	}
	if err := attach(s.fd, target); err != nil {
		return err
	}
	if m.ReadOnly {
		t.readOnly = append(t.readOnly, target)
	} else {
		t.writable = append(t.writable, target)
	}
	return nil
}

// create creates the target of a mount if it is missing, and returns it with all links resolved.
func (t *tree) create(target string, dir bool) (string, error) {
	existing, missing := target, ""
	var resolved string
	for {
		var err error
		if resolved, err = filepath.EvalSymlinks(existing); err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		if _, err := os.Lstat(existing); err == nil {
			return "", fmt.Errorf("%s is a dangling link", existing)
		}
		missing = filepath.Join(filepath.Base(existing), missing)
		existing = filepath.Dir(existing)
	}
	if missing == "" {
		return resolved, nil
	}
	if info, err := os.Stat(resolved); err != nil || !info.IsDir() {
		return "", fmt.Errorf("%s is not a directory", existing)
	}
	writable := depthIn(t.writable, resolved)
	switch {
	case depthIn(t.readOnly, resolved) > writable:
		return "", fmt.Errorf("the read-only volume mounted above has no %s", missing)
	case writable > 0, t.own(resolved):
	default:
		if err := t.view(resolved); err != nil {
			return "", fmt.Errorf("create %s in a view of %s: %w", missing, resolved, err)
		}
	}
	whole := filepath.Join(resolved, missing)
	if dir {
		return whole, os.MkdirAll(whole, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(whole), 0o755); err != nil {
		return "", err
	}
	f, err := os.OpenFile(whole, os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return "", err
	}
	return whole, f.Close()
}

// depthIn returns the length of the longest of dirs that contains path, or 0.
func depthIn(dirs []string, path string) int {
	longest := 0
	for _, dir := range dirs {
		if path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/") {
			longest = max(longest, len(dir))
		}
	}
	return longest
}

// own reports whether a directory is on a file system of a view.
func (t *tree) own(dir string) bool {
	var of, view unix.Stat_t
	if unix.Stat(dir, &of) != nil {
		return false
	}
	for _, v := range t.views {
		if unix.Stat(v, &view) == nil && view.Dev == of.Dev {
			return true
		}
	}
	return false
}

// entry is an entry of a directory that a view replaces.
type entry struct {
	name, link string
	fd         int
	dir        bool
}

// view replaces a directory by a file system with the same entries. New entries in it do not appear on the machine.
func (t *tree) view(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	entries, err := entriesOf(dir)
	defer func() {
		for _, e := range entries {
			if e.link == "" {
				_ = unix.Close(e.fd)
			}
		}
	}()
	if err != nil {
		return err
	}
	at := dir
	if dir == "/" {
		at = t.staging
	}
	mode := info.Mode().Perm()
	if info.Mode()&fs.ModeSticky != 0 {
		mode |= 0o1000
	}
	if err := unix.Mount("tmpfs", at, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("mode=%o", mode)); err != nil {
		return os.NewSyscallError("mount", err)
	}
	for _, e := range entries {
		if err := e.put(at); err != nil {
			return fmt.Errorf("%s: %w", e.name, err)
		}
	}
	if dir == "/" {
		if err := pivot(at); err != nil {
			return err
		}
	}
	t.views = append(t.views, dir)
	return nil
}

func entriesOf(dir string) (all []entry, err error) {
	listed, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	if len(listed) > maxEntries {
		return nil, fmt.Errorf("%d entries exceed the limit of %d: create the directory on this machine", len(listed), maxEntries)
	}
	for _, l := range listed {
		path := filepath.Join(dir, l.Name())
		if l.Type()&fs.ModeSymlink != 0 {
			link, err := os.Readlink(path)
			if err != nil {
				return all, err
			}
			all = append(all, entry{name: l.Name(), link: link})
			continue
		}
		fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_SYMLINK_NOFOLLOW)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return all, &os.PathError{Op: "open_tree", Path: path, Err: err}
		}
		all = append(all, entry{name: l.Name(), fd: fd, dir: l.IsDir()})
	}
	return all, nil
}

// put creates the entry in a directory.
func (e *entry) put(dir string) error {
	path := filepath.Join(dir, e.name)
	switch {
	case e.link != "":
		return os.Symlink(e.link, path)
	case e.dir:
		if err := os.Mkdir(path, 0o755); err != nil {
			return err
		}
	default:
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	return attach(e.fd, path)
}

// pivot changes the root to a mounted directory.
func pivot(root string) error {
	if err := os.Chdir(root); err != nil {
		return err
	}
	// This mounts the old root over the new one, from where it is unmounted.
	if err := unix.PivotRoot(".", "."); err != nil {
		return os.NewSyscallError("pivot_root", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return os.NewSyscallError("umount", err)
	}
	return os.Chdir("/")
}

// startMounted starts a program with volumes through the helper, and returns once the helper has executed the program.
func (s *Spawner) startMounted(c *Command, stdin *os.File) (p *os.Process, pidfd int, err error) {
	content, err := json.Marshal(&launch{
		Staging: c.Staging, Mounts: c.Mounts, Argv: c.Argv, Env: c.Env, Dir: c.Dir, User: c.User, Parent: os.Getpid(),
	})
	if err != nil {
		return nil, -1, err
	}
	tries := []func(*syscall.SysProcAttr){inMountNamespace, inUserNamespace}
	if os.Geteuid() != 0 {
		tries = tries[1:]
	}
	for _, namespaces := range tries {
		p, pidfd, err = s.startHelper(c, stdin, content, namespaces)
		if !isForbidden(err) {
			return p, pidfd, err
		}
	}
	return nil, -1, ErrNoNamespaces
}

// isForbidden reports whether the helper failed because namespaces are not allowed.
func isForbidden(err error) bool {
	for _, of := range []error{ErrNoNamespaces, fs.ErrPermission, syscall.EINVAL, syscall.ENOSPC, syscall.ENOSYS} {
		if errors.Is(err, of) {
			return true
		}
	}
	return false
}

func inMountNamespace(a *syscall.SysProcAttr) { a.Cloneflags |= syscall.CLONE_NEWNS }

// inUserNamespace grants the helper the right to mount in namespaces of its own. Its user stays the same.
func inUserNamespace(a *syscall.SysProcAttr) {
	a.Cloneflags |= syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS
	a.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}}
	a.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}}
	a.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN}
}

func (s *Spawner) startHelper(c *Command, stdin *os.File, content []byte, namespaces func(*syscall.SysProcAttr)) (*os.Process, int, error) {
	launchRead, launchWrite, err := os.Pipe()
	if err != nil {
		return nil, -1, err
	}
	resultRead, resultWrite, err := os.Pipe()
	if err != nil {
		return nil, -1, errors.Join(err, launchRead.Close(), launchWrite.Close())
	}
	defer resultRead.Close()
	plain := *c
	plain.User = nil
	pidfd := -1
	sys := attributes(&plain, &pidfd)
	namespaces(sys)
	// The helper needs no other variable than the mark.
	p, err := s.fork("/proc/self/exe", []string{helperName}, &os.ProcAttr{
		Env: c.Env[:min(1, len(c.Env))], Files: []*os.File{stdin, c.Stdout, c.Stderr, launchRead, resultWrite}, Sys: sys,
	})
	_ = resultWrite.Close()
	_ = launchRead.Close()
	if err != nil {
		return nil, -1, errors.Join(err, launchWrite.Close())
	}
	go func() {
		_, _ = launchWrite.Write(content)
		_ = launchWrite.Close()
	}()
	// Executing the program closes the pipe, so that an empty result means success.
	result, err := io.ReadAll(io.LimitReader(resultRead, 64<<10))
	switch {
	case err == nil && len(result) == 0:
		return p, pidfd, nil
	case err == nil && string(result) == ErrNoNamespaces.Error():
		err = ErrNoNamespaces
	case err == nil:
		err = errors.New(string(result))
	}
	_ = p.Kill()
	_, _ = p.Wait()
	if pidfd >= 0 {
		_ = unix.Close(pidfd)
	}
	return nil, -1, err
}
