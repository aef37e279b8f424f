//go:build !linux

package process

import (
	"errors"
	"os"
	"syscall"

	"k8s.io/klog/v2"
)

// Systems other than Linux do not support everything: processes outlive a server that is killed, and resource limits are
// not enforced.

type owner struct{ id string }

func newOwner(string) (*owner, error)                           { return &owner{}, nil }
func (o *owner) close()                                         {}
func (o *owner) variable(backend string) string                 { return "KNATIVE_STANDALONE_INSTANCE=" + backend }
func (o *owner) record(int) (remove func())                     { return func() {} }
func (o *owner) killLeftovers(klog.Logger)                      {}
func (o *owner) killStrays(klog.Logger, func(name string) bool) {}

func attributes(c *command, _ *int) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setpgid: true}
	if c.user != nil {
		a.Credential = &syscall.Credential{Uid: c.user.uid, Gid: c.user.gid}
	}
	return a
}

func setCloseOnExec() {}

// awaitExit returns false: the caller waits.
func awaitExit(int, int) bool { return false }

// mountsSupported reports whether containers may have volumes on this system.
const mountsSupported = false

// Helper does nothing, because containers have no volumes on this system.
func Helper() {}

func (s *spawner) startMounted(*command, *os.File) (*os.Process, int, error) {
	return nil, -1, errors.ErrUnsupported
}
