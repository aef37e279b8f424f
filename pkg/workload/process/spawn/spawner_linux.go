package spawn

import (
	"errors"
	"math"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// attributes makes a process the leader of a new group, which is killed when the thread that starts it exits.
func attributes(c *Command, pidfd *int) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, PidFD: pidfd}
	if c.User != nil {
		a.Credential = &syscall.Credential{Uid: c.User.UID, Gid: c.User.GID}
	}
	if c.Cgroup != nil {
		a.UseCgroupFD, a.CgroupFD = true, int(c.Cgroup.Fd())
	}
	return a
}

// setCloseOnExec prevents processes from inheriting descriptors that the server inherited itself. Descriptors that the server
// opens are never inherited.
func setCloseOnExec() {
	// Kernels before 5.11 do not support this, and have no alternative.
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
}

// awaitExit returns true when a child has exited and can be reaped, and false if the caller must wait for it. pidfd refers
// to the child, or is -1 if the kernel does not support it. awaitExit closes it.
func awaitExit(pid, pidfd int) bool {
	return pidfd >= 0 && pollExit(pidfd) || exited(unix.P_PID, pid, 0)
}

// pollExit waits through the network poller, which needs no thread. It returns false if that is not supported.
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
	// The descriptor becomes readable when the child has exited. Read also fails if the descriptor cannot be polled.
	err = conn.Read(func(fd uintptr) bool { return exited(unix.P_PIDFD, int(fd), unix.WNOHANG) })
	return err == nil
}

// exited reports whether a process has exited, or is not a child of this process.
func exited(idType, id, options int) bool {
	for {
		var info unix.Siginfo
		err := unix.Waitid(idType, id, &info, unix.WEXITED|unix.WNOWAIT|options, nil)
		if !errors.Is(err, unix.EINTR) {
			// Any other error means that the child does not exist.
			return err != nil || info.Signo != 0
		}
	}
}
