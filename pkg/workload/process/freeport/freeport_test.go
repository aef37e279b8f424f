package freeport_test

import (
	"errors"
	"net"
	"strconv"
	"syscall"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/pkg/workload/process/freeport"
	"github.com/knative-apiserver/knative-apiserver/test/port"
)

// TestCheck checks that a port is in use while a server listens on one of the addresses, and free afterwards, also with a connection
// left. TestListenBesidePrograms of test/port checks that other programs may start meanwhile.
func TestCheck(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "0.0.0.0", "::1", "::"} {
		number, err := port.Stable()
		if err != nil {
			t.Fatal(err)
		}
		listener, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(number)))
		if errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT) {
			t.Logf("%s: not checked, because this machine has no such address", host)
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
		if err := freeport.Check(number); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("while a server listens on %s: %v, want EADDRINUSE", host, err)
		}
		if err := errors.Join(listener.Close(), accepted.Close()); err != nil {
			t.Fatal(err)
		}
		if err := freeport.Check(number); err != nil {
			t.Errorf("after the server on %s: %v", host, err)
		}
		conn.Close()
	}
}
