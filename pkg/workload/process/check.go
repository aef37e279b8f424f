package process

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/pkg/workload/probing"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/process/spawn"
)

// checks creates the checks for the probes of one container.
type checks struct {
	container *container
	// port is the value of PORT.
	port int
	h2c  bool
	// command is the container's own command. Exec checks share its environment, user and mounts.
	command *spawn.Command
	spawner *spawn.Spawner
}

// check returns the check for a probe's handler.
func (c *checks) check(handler *corev1.ProbeHandler) check {
	switch {
	case handler.Exec != nil:
		return func(ctx context.Context, timeout time.Duration) error {
			return c.exec(ctx, timeout, handler.Exec.Command)
		}
	case handler.HTTPGet != nil:
		protocols := &http.Protocols{}
		protocols.SetHTTP1(!c.h2c)
		protocols.SetUnencryptedHTTP2(c.h2c)
		return c.at(handler.HTTPGet.Port.String(), func(address string) probing.Check {
			return probing.HTTP(handler.HTTPGet, address, protocols)
		})
	case handler.GRPC != nil:
		return c.at(strconv.Itoa(int(handler.GRPC.Port)), func(address string) probing.Check {
			return probing.GRPC(address, ptr.Deref(handler.GRPC.Service, ""))
		})
	default:
		tcp := ptr.Deref(handler.TCPSocket, corev1.TCPSocketAction{})
		return c.at(tcp.Port.String(), probing.TCP)
	}
}

// at returns a check of a port of the container. An invalid port makes it fail each time.
func (c *checks) at(port string, at func(address string) probing.Check) check {
	number, err := c.container.port(c.port, port)
	if err != nil {
		return within(func(context.Context) error { return err })
	}
	return within(at(net.JoinHostPort(loopback, strconv.Itoa(number))))
}

// exec runs a program in the environment of the container, in a process group of its own, and returns nil if it exits with
// 0. The timeout begins when the program has started: the start may be delayed while many backends start.
func (c *checks) exec(ctx context.Context, timeout time.Duration, argv []string) error {
	if len(argv) == 0 {
		return errors.New("exec.command is empty")
	}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	command := *c.command
	command.Argv, command.Stdout, command.Stderr, command.Cgroup = argv, null, null, nil
	p, err := c.spawner.Start(&command)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	select {
	case <-p.Done():
	case <-ctx.Done():
		p.Signal(syscall.SIGKILL)
		<-p.Done()
		return fmt.Errorf("%s: %w", argv[0], ctx.Err())
	}
	if !p.State().Success() {
		return fmt.Errorf("%s: %s", argv[0], p.State())
	}
	return nil
}
