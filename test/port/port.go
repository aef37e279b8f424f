// Package port allocates ports for servers in tests.
package port

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
)

// firstPort is the first port that Stable considers.
const firstPort = 10000

// Stable returns a free port of the loopback address that stays free until a server listens on it. The kernel assigns other
// ports to clients: a client that repeatedly connects to such a port while it is closed is eventually assigned that port
// itself, connects to itself, and blocks the port.
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
		return 0, fmt.Errorf("clients get ports from %d, and none is left from %d", first, firstPort)
	}
	var errs []error
	for range 10 {
		port := firstPort + rand.IntN(first-firstPort)
		listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			return port, listener.Close()
		}
		errs = append(errs, err)
	}
	return 0, errors.Join(errs...)
}
