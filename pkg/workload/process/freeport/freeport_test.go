package freeport

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sync/errgroup"
)

// TestCheck checks that a port is in use while a server listens on one of the addresses, and free afterwards, also with connections left.
func TestCheck(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "0.0.0.0:0", "[::1]:0", "[::]:0"} {
		listener, err := net.Listen("tcp", address)
		if errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT) {
			t.Logf("%s: not checked, because this machine has no such address", address)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		accepted, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		port := listener.Addr().(*net.TCPAddr).Port
		if err := Check(port); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("while a server listens on %s: %v, want EADDRINUSE", address, err)
		}
		if err := errors.Join(listener.Close(), accepted.Close()); err != nil {
			t.Fatal(err)
		}
		if err := Check(port); err != nil {
			t.Errorf("after the server on %s: %v", address, err)
		}
		conn.Close()
	}
}

// TestCheckBesidePrograms checks that a server can listen on a checked port although other programs start all the time.
func TestCheckBesidePrograms(t *testing.T) {
	var programs errgroup.Group
	var ended atomic.Bool
	defer ended.Store(true)
	for range 4 {
		programs.Go(func() error {
			for !ended.Load() {
				if err := exec.Command(os.Args[0], "-test.run=^$").Run(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	free := 0
	for port := 30000; free < 1000 && port < 32000; port++ {
		if Check(port) != nil {
			continue
		}
		free++
		listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			t.Fatal(err)
		}
		if err := listener.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if free == 0 {
		t.Fatal("no port is free")
	}
	ended.Store(true)
	if err := programs.Wait(); err != nil {
		t.Fatal(err)
	}
}
