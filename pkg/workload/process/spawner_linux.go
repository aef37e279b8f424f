package process

import (
	"errors"
	"math"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// attributes have a process lead a group of its own, and end with the thread that starts it.
func attributes(c *command, pidfd *int) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, PidFD: pidfd}
	if c.user != nil {
		a.Credential = &syscall.Credential{Uid: c.user.uid, Gid: c.user.gid}
	}
	if c.cgroup != nil {
		a.UseCgroupFD, a.CgroupFD = true, int(c.cgroup.Fd())
	}
	return a
}

// keepFiles keeps processes from inheriting files that the server was given by whoever started it. Those that it
// opens itself are never inherited.
func keepFiles() {
	// Kernels before 5.11 cannot, and have no other way.
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
}

// awaitExit returns when a child has exited. It stays to be reaped. pidfd refers to the child, or is -1 where
// the kernel is too old; it is closed. False means that reaping has to do the waiting.
func awaitExit(pid, pidfd int) bool {
	return pidfd >= 0 && pollExit(pidfd) || exited(unix.P_PID, pid, 0)
}

// pollExit waits with the other descriptors of the server, so that no thread is needed for it. It returns
// false where that is not possible.
func pollExit(pidfd int) bool {
	if err := unix.SetNonblock(pidfd, true); err != nil {
		_ = unix.Close(pidfd)
		return false
	}
	file := os.NewFile(uintptr(pidfd), "pidfd")
	defer file.Close()
	conn, err := file.SyscallConn()
	if err != nil {
		return false
	}
	// The descriptor becomes readable once the child has exited. Reading also fails where it cannot be polled.
	err = conn.Read(func(fd uintptr) bool { return exited(unix.P_PIDFD, int(fd), unix.WNOHANG) })
	return err == nil
}

// exited reports whether a child has exited, or is no child of this process.
func exited(idType, id, options int) bool {
	for {
		var info unix.Siginfo
		err := unix.Waitid(idType, id, &info, unix.WEXITED|unix.WNOWAIT|options, nil)
		if !errors.Is(err, unix.EINTR) {
			// On any other error there is no such child, and nothing to wait for.
			return err != nil || info.Signo != 0
		}
	}
}
