// Package egress dials addresses that tenants choose: event destinations and image registries. A Guard refuses addresses of
// the node, of its metadata service, of this server and of the operator's deny list when it connects, after DNS resolution,
// so that a name cannot resolve to a different address later.
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

// ErrRefused is returned for connections to an address that is not allowed. It is the same for all such addresses, so that
// it does not disclose the address of a name or the services that listen there.
var ErrRefused = errors.New("the address is not allowed as a destination (see --allow-destination and --deny-destination)")

// The purposes of connections: values of the label "for" of the metric of refused connections.
const (
	ForEvents   = "events"
	ForRegistry = "registry"
)

// interfacesAge is the maximum age of the cached addresses of the network interfaces.
const interfacesAge = 10 * time.Second

// Options configure a Guard. The zero value refuses addresses that are never valid destinations in a cluster.
type Options struct {
	// Allow and Deny are the prefixes that the operator configured. Of all prefixes that contain an address, including the
	// built-in ones, the longest decides. Of two equal prefixes, the operator's decides. Other addresses are allowed.
	Allow, Deny []netip.Prefix
	// AllowLoopback disables the built-in refusal of loopback addresses.
	AllowLoopback bool
	// Own are further addresses of this server and its node, in addition to its network interfaces and default gateways.
	// Own addresses are refused like prefixes of full length.
	Own []netip.Addr
	// Except are own addresses that are allowed.
	Except []netip.Addr
	// Replicas returns the addresses of the replicas of this server, which are own addresses too. Nil returns none.
	Replicas func() []netip.Addr
	// Interfaces returns the addresses of the network interfaces. Nil reads them from the operating system.
	Interfaces func() ([]netip.Addr, error)
	// Clock defaults to the real one.
	Clock clock.PassiveClock
	// Register registers metrics. Nil disables them.
	Register func(...metrics.Registerable)
}

// Guard decides which addresses tenants may connect to. It is safe for concurrent use.
type Guard struct {
	options Options
	rules   rules
	refused *metrics.CounterVec

	// mu guards the fields below: the addresses of the network interfaces and the time they were read.
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
		Help: "Number of connections that were refused because of their address, by purpose.",
	}, []string{"for"})}
	if o.Register != nil {
		o.Register(g.refused)
	}
	return g
}

// Allows reports whether connections to an address are allowed. An IPv6 address that embeds an IPv4 address is allowed only
// if both are allowed.
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

// own reports whether an address belongs to this server or its node.
func (g *Guard) own(addr netip.Addr) bool {
	if slices.Contains(g.options.Except, addr) {
		return false
	}
	if slices.Contains(g.options.Own, addr) || slices.Contains(g.current(), addr) {
		// The rules decide about loopback addresses.
		return !addr.IsLoopback()
	}
	return g.options.Replicas != nil && slices.Contains(g.options.Replicas(), addr)
}

// current returns the addresses of the network interfaces. If they cannot be read, it returns the last known ones.
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

// Dialer returns a function that connects to allowed addresses, each within timeout. It fails with ErrRefused if an address
// of the name was refused and no other address accepted the connection.
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
			// Do not wrap the error: the wrapping names the address.
			return nil, g.refuse(purpose)
		}
		return conn, err
	}
}

// CheckHost fails with ErrRefused if host is an address that is not allowed. It is for connections through a proxy, which
// resolves names itself.
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
