package process

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync"

	"github.com/knative-apiserver/knative-apiserver/pkg/workload/process/freeport"
)

// ports allocates free TCP ports outside the kernel's range for outgoing connections. The gateway opens many of these, and
// one could otherwise use a port before its process listens there.
type ports struct {
	// first and last are the bounds, inclusive.
	first, last int

	mu    sync.Mutex
	next  int
	inUse map[int]struct{}
}

const (
	firstPort = 10000
	// Linux uses this port and above for outgoing connections by default.
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
	// A random first port avoids the ports of the server's previous run, which may not be free yet.
	p.next = p.first + rand.IntN(p.last-p.first+1)
	return p
}

// portRange returns the larger range of ports outside of low to high.
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

// allocate returns a port without a listener. Released ports are reused after all others.
func (p *ports) allocate() (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for range p.last - p.first + 1 {
		port := p.next
		p.next++
		if p.next > p.last {
			p.next = p.first
		}
		if _, ok := p.inUse[port]; ok || freeport.Check(port) != nil {
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
