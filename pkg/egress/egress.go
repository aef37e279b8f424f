// Package egress makes the connections that tenants can ask for by naming an address: destinations of events, registries of
// images. A Guard refuses addresses of the node, of its metadata service, of this server and of the operator's list when
// the connection is made, after names have been resolved, so that a name cannot lead elsewhere later.
package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/utils/clock"
)

// ErrRefused is the error of connections to an address that is not allowed. It is the same for all such addresses, so that
// nobody learns which address a name has, or what would answer there.
var ErrRefused = errors.New("the address is not allowed as a destination (see --allow-destination and --deny-destination)")

// What connections are for: the values of the label "for" of the metric of refused ones.
const (
	ForEvents   = "events"
	ForRegistry = "registry"
)

// interfacesAge is how old the known addresses of the network interfaces may be.
const interfacesAge = 10 * time.Second

// Options are those of a Guard. The zero value refuses what is never right in a cluster.
type Options struct {
	// Allow and Deny are the operator's. Of all prefixes that contain an address, the built-in ones among them, the longest
	// decides. Of two that are equal, the operator's decides. What none contains is allowed.
	Allow, Deny []netip.Prefix
	// AllowLoopback leaves out the built-in refusal of loopback addresses.
	AllowLoopback bool
	// Own are further addresses of this server and its node, besides those of its network interfaces and its default
	// gateways. Own addresses are refused like prefixes of full length.
	Own []netip.Addr
	// Except are own addresses that are allowed.
	Except []netip.Addr
	// Replicas returns the addresses of the replicas of this server, which are own addresses too. Nil returns none.
	Replicas func() []netip.Addr
	// Interfaces returns the addresses of the network interfaces; nil asks the system.
	Interfaces func() ([]netip.Addr, error)
	// Clock defaults to the real one.
	Clock clock.PassiveClock
	// Register registers metrics; nil if they are not wanted.
	Register func(...metrics.Registerable)
}

// Guard decides which addresses may be connected to for tenants. It is safe for concurrent use.
type Guard struct {
	options Options
	rules   rules
	refused *metrics.CounterVec

	// mu guards the fields below: the addresses of the network interfaces as they were at a time.
	mu         sync.Mutex
	interfaces []netip.Addr
	readAt     time.Time
}

// New returns a Guard.
func New(o Options) *Guard {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Interfaces == nil {
		o.Interfaces = systemAddresses
	}
	g := &Guard{options: o, rules: newRules(o), refused: metrics.NewCounterVec(&metrics.CounterOpts{
		Namespace: "knative", Subsystem: "egress", Name: "refused_connections_total", StabilityLevel: metrics.ALPHA,
		Help: "Number of connections that were refused because of their address, by what they were for.",
	}, []string{"for"})}
	if o.Register != nil {
		o.Register(g.refused)
	}
	return g
}

// Allows reports whether connections to an address may be made. An IPv6 address that holds an IPv4 address is allowed only
// if both are.
func (g *Guard) Allows(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	if !addr.IsValid() || !g.allows(addr) {
		return false
	}
	inner, ok := embedded(addr)
	return !ok || g.allows(inner)
}

func (g *Guard) allows(addr netip.Addr) bool {
	allow, bits := g.rules.decide(addr)
	if bits == addr.BitLen() || !allow {
		return allow
	}
	return !g.own(addr)
}

// own reports whether an address is that of this server or its node.
func (g *Guard) own(addr netip.Addr) bool {
	if slices.Contains(g.options.Except, addr) {
		return false
	}
	if slices.Contains(g.options.Own, addr) || slices.Contains(g.current(), addr) {
		// The rules decide about loopback.
		return !addr.IsLoopback()
	}
	return g.options.Replicas != nil && slices.Contains(g.options.Replicas(), addr)
}

// current returns the addresses of the network interfaces. If they cannot be read, the last known ones stay.
func (g *Guard) current() []netip.Addr {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.options.Clock.Now()
	if g.readAt.IsZero() || now.Sub(g.readAt) >= interfacesAge {
		g.readAt = now
		if read, err := g.options.Interfaces(); err == nil {
			g.interfaces = read
		}
	}
	return g.interfaces
}

// DialContext is the function of a net.Dialer or an http.Transport.
type DialContext func(ctx context.Context, network, address string) (net.Conn, error)

// Dialer returns a function that makes connections to allowed addresses, each within timeout. It fails with ErrRefused if
// an address of the name was refused and no other one took the connection.
func (g *Guard) Dialer(purpose string, timeout time.Duration) DialContext {
	d := &net.Dialer{Timeout: timeout, ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
		if to, err := netip.ParseAddrPort(address); err != nil || !g.Allows(to.Addr()) {
			return ErrRefused
		}
		return nil
	}}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := d.DialContext(ctx, network, address)
		if errors.Is(err, ErrRefused) {
			// Without the wrapping, which names the address.
			return nil, g.refuse(purpose)
		}
		return conn, err
	}
}

// CheckHost fails with ErrRefused for a host that is an address which is not allowed. It is for connections that a proxy
// makes, which resolves names itself.
func (g *Guard) CheckHost(purpose, host string) error {
	if addr, err := netip.ParseAddr(host); err == nil && !g.Allows(addr) {
		return g.refuse(purpose)
	}
	return nil
}

func (g *Guard) refuse(purpose string) error {
	g.refused.WithLabelValues(purpose).Inc()
	return ErrRefused
}
