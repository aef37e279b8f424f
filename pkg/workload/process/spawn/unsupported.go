//go:build !linux

package spawn

import (
	"errors"
	"os"
	"syscall"
)

func attributes(c *Command, _ *int) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setpgid: true}
	if c.User != nil {
		a.Credential = &syscall.Credential{Uid: c.User.UID, Gid: c.User.GID}
	}
	return a
}

func setCloseOnExec() {}

// awaitExit returns false: the caller waits.
func awaitExit(int, int) bool { return false }

// MountsSupported reports whether programs may have mounts on this system.
const MountsSupported = false

// Helper does nothing, because programs have no mounts on this system.
func Helper() {}

func (s *Spawner) startMounted(*Command, *os.File) (*os.Process, int, error) {
	return nil, -1, errors.ErrUnsupported
}
