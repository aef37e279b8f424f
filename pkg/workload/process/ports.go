package process

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
)

// ports allocates free TCP ports. They lie below the ports that the kernel gives to outgoing connections, of
// which the gateway makes many: one of those must not take a port before its process listens there.
type ports struct {
	// first and last bound the ports, both included.
	first, last int

	mu    sync.Mutex
	next  int
	inUse map[int]struct{}
}

const (
	firstPort = 10000
	// Without a range of its own for outgoing connections, Linux uses those from here on.
	firstEphemeralPort = 32768
)

func newPorts() *ports {
	p := &ports{first: firstPort, last: firstEphemeralPort - 1, inUse: map[int]struct{}{}}
	if data, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		var low, high int
		if n, _ := fmt.Sscan(string(data), &low, &high); n == 2 {
			p.first, p.last = portRange(low, high)
		}
	}
	// A server that is started again is not to meet what still lingers of its predecessor.
	p.next = p.first + rand.IntN(p.last-p.first+1)
	return p
}

// portRange is the larger range of ports beside those from low to high.
func portRange(low, high int) (first, last int) {
	below, above := low-firstPort, 65535-high
	switch {
	case below >= above && below >= 1000:
		return firstPort, low - 1
	case above >= 1000:
		return high + 1, 65535
	default:
		return firstPort, 65535
	}
}

// allocate returns a port without a listener. It is not allocated again before it is released, and then the
// others come first.
func (p *ports) allocate() (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for range p.last - p.first + 1 {
		port := p.next
		p.next++
		if p.next > p.last {
			p.next = p.first
		}
		if _, ok := p.inUse[port]; ok || !isFree(port) {
			continue
		}
		p.inUse[port] = struct{}{}
		return port, nil
	}
	return 0, fmt.Errorf("no TCP port from %d to %d is free", p.first, p.last)
}

func (p *ports) release(port int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.inUse, port)
}

// isFree reports whether a process could listen on all addresses.
func isFree(port int) bool {
	listener, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	return listener.Close() == nil
}
