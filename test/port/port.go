// Package port allocates ports for servers in tests.
package port

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/workload/process/freeport"
)

const (
	// firstPort is the first port that Stable considers.
	firstPort = 10000
	// lastPort is before the range of NodePorts: kube-proxy takes connections to those from servers of the node.
	lastPort = 30000
	// attempts is the number of ports that Stable tries.
	attempts = 100
)

// errReserved is returned for a port that another call of Stable returned, in any process that still runs.
var errReserved = errors.New("the port is reserved")

// reserved are the locks of the ports of this process. The kernel releases them when the process exits.
var reserved struct {
	mu    sync.Mutex
	locks []*os.File
}

// Stable returns a port that is free on all addresses of this machine, and stays free until a server listens on it. No other call
// returns it while this process runs: packages that are tested at the same time get different ports. The kernel assigns other ports to
// clients: a client that repeatedly connects to such a port while it is closed is eventually assigned that port itself, connects to
// itself, and blocks the port.
func Stable() (int, error) {
	content, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return 0, err
	}
	var first, last int
	if _, err := fmt.Sscan(string(content), &first, &last); err != nil {
		return 0, fmt.Errorf("reading the range of ports for clients: %w", err)
	}
	if first <= firstPort {
		return 0, fmt.Errorf("clients get ports from %d, and no port is free from %d", first, firstPort)
	}
	var errs []error
	for range attempts {
		port := firstPort + rand.IntN(min(first, lastPort)-firstPort)
		if err := try(directory(), port); err != nil {
			errs = append(errs, fmt.Errorf("port %d: %w", port, err))
			continue
		}
		return port, nil
	}
	return 0, errors.Join(errs...)
}

// Listen returns a listener whose address connects to nothing once it is closed. The kernel may assign the port of a closed listener
// on port 0 to the next one.
func Listen(t testing.TB) net.Listener {
	t.Helper()
	port, err := Stable()
	if err != nil {
		t.Fatal(err)
	}
	listener, err := ListenOn(net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	return listener
}

// ListenOn listens on an address with a port that Stable returned. A program that starts shares the listeners of this process until
// the kernel executes it, so that the port of a closed one may be in use for a moment: ListenOn waits for up to ten seconds.
func ListenOn(address string) (net.Listener, error) {
	for end := time.Now().Add(10 * time.Second); ; <-time.After(10 * time.Millisecond) {
		listener, err := net.Listen("tcp", address)
		if !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(end) {
			return listener, err
		}
	}
}

// directory returns the directory of the lock files. The clusters of hack/cluster lock their ports there too.
func directory() string {
	return filepath.Join(os.TempDir(), "knative-apiserver-ports-"+strconv.Itoa(os.Getuid()))
}

// try reserves a port by a lock file in a directory, if it is free. The files remain, because a lock on a deleted file excludes no process.
func try(dir string, port int) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(port)), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = errReserved
		}
		return errors.Join(err, file.Close())
	}
	if err := freeport.Check(port); err != nil {
		return errors.Join(err, file.Close())
	}
	reserved.mu.Lock()
	defer reserved.mu.Unlock()
	reserved.locks = append(reserved.locks, file)
	return nil
}
