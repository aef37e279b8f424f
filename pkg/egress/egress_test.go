package egress

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"
	clocktesting "k8s.io/utils/clock/testing"
)

func addrs(texts ...string) []netip.Addr {
	parsed := make([]netip.Addr, len(texts))
	for i, text := range texts {
		parsed[i] = netip.MustParseAddr(text)
	}
	return parsed
}

// TestGuard checks that a Guard refuses the addresses of the node, of its metadata service and of this server, in all forms.
func TestGuard(t *testing.T) {
	own := Options{
		Own: addrs("10.0.0.7", "fd00::7"), Replicas: func() []netip.Addr { return addrs("10.244.1.9") },
		Interfaces: func() ([]netip.Addr, error) { return addrs("127.0.0.1", "::1", "10.244.0.5"), nil },
	}
	with := func(change func(*Options)) Options {
		o := own
		change(&o)
		return o
	}
	for name, tt := range map[string]struct {
		options          Options
		allowed, refused []string
	}{
		"nothing said": {
			options: own,
			allowed: []string{"10.96.0.10", "10.244.0.6", "192.168.1.1", "172.16.0.1", "8.8.8.8", "2606:4700::1111", "fd00::8", "64:ff9b::808:808", "2002:808:808::1", "100.64.0.1"},
			refused: []string{
				"127.0.0.1", "127.255.0.1", "::1", "0.0.0.0", "0.1.2.3", "::",
				"169.254.169.254", "fe80::1", "fe80::1%eth0", "fec0::1", "224.0.0.1", "239.1.1.1", "255.255.255.255", "240.0.0.1", "ff02::1",
				"fd00:ec2::254", "100.100.100.200", "168.63.129.16",
				// IPv4-mapped, IPv4-compatible, IPv4-translated, NAT64, 6to4, ISATAP.
				"::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:10.0.0.7", "::127.0.0.1", "::ffff:0:127.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b::7f00:1",
				"64:ff9b:1::a9fe:a9fe", "64:ff9b::a00:7", "2002:7f00:1::1", "2002:a9fe:a9fe::", "2002:a00:7::1", "::5efe:7f00:1",
				// The node, this server, another replica.
				"10.0.0.7", "fd00::7", "10.244.0.5", "10.244.1.9",
			},
		},
		"loopback": {
			options: with(func(o *Options) { o.AllowLoopback = true }),
			allowed: []string{"127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"},
			refused: []string{"0.0.0.0", "::", "169.254.169.254", "10.244.0.5"},
		},
		"loopback, but denied": {
			options: with(func(o *Options) { o.AllowLoopback, o.Deny = true, prefixes("127.0.0.0/8", "::1/128") }),
			refused: []string{"127.0.0.1", "::1", "::ffff:127.0.0.1"},
		},
		"an own address that is an exception": {
			options: with(func(o *Options) { o.Except = addrs("10.244.0.5") }),
			allowed: []string{"10.244.0.5"},
			refused: []string{"10.0.0.7"},
		},
		"the longest prefix decides": {
			options: with(func(o *Options) {
				o.Deny = prefixes("10.0.0.0/8", "0.0.0.0/0")
				o.Allow = prefixes("10.96.0.0/12", "127.0.0.2/32", "10.244.0.0/16", "93.184.0.0/16")
			}),
			allowed: []string{"10.96.0.1", "127.0.0.2", "10.244.0.6", "93.184.1.1", "2606:4700::1111"},
			// A network that contains an own address does not allow it.
			refused: []string{"10.1.2.3", "127.0.0.1", "8.8.8.8", "10.244.0.5", "64:ff9b::808:808", "2002:a01:203::1"},
		},
		"built-in refusals, allowed by prefix or by address": {
			options: with(func(o *Options) { o.Allow = prefixes("127.0.0.0/8", "169.254.10.0/24", "10.0.0.7/32", "::1/128") }),
			allowed: []string{"127.0.0.1", "169.254.10.1", "10.0.0.7", "::1"},
			refused: []string{"169.254.169.254", "fd00::7"},
		},
		"everything allowed": {
			options: with(func(o *Options) { o.Allow = prefixes("0.0.0.0/0", "::/0") }),
			allowed: []string{"10.1.2.3"},
			refused: []string{"127.0.0.1", "169.254.169.254", "10.0.0.7", "::1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			guard := New(tt.options)
			for _, addr := range addrs(tt.allowed...) {
				if !guard.Allows(addr) {
					t.Errorf("%s is refused", addr)
				}
			}
			for _, addr := range addrs(tt.refused...) {
				if guard.Allows(addr) {
					t.Errorf("%s is allowed", addr)
				}
			}
		})
	}
	if New(own).Allows(netip.Addr{}) {
		t.Error("no address is allowed")
	}
}

// TestInterfacesChange covers a machine whose addresses change, and checks that the last known ones are used while they cannot be read.
func TestInterfacesChange(t *testing.T) {
	now := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
	current, failure := addrs("192.168.1.5"), error(nil)
	guard := New(Options{Clock: now, Interfaces: func() ([]netip.Addr, error) { return current, failure }})
	expect := func(when string, refused, allowed string) {
		t.Helper()
		if guard.Allows(netip.MustParseAddr(refused)) || !guard.Allows(netip.MustParseAddr(allowed)) {
			t.Errorf("%s: %s must be refused, %s allowed", when, refused, allowed)
		}
	}
	expect("at first", "192.168.1.5", "192.168.1.6")
	current = addrs("192.168.1.6")
	now.SetTime(now.Now().Add(interfacesAge))
	expect("moved", "192.168.1.6", "192.168.1.5")
	current, failure = nil, errors.New("no memory")
	now.SetTime(now.Now().Add(interfacesAge))
	expect("cannot be read", "192.168.1.6", "192.168.1.5")
}

// TestDialer checks that a Dialer decides after DNS resolution, returns the same error for all refused addresses, and counts them.
func TestDialer(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	registry := metrics.NewKubeRegistry()
	guard := New(Options{Register: registry.MustRegister})
	dial := guard.Dialer(ForEvents, time.Minute)
	// The result does not depend on whether a server listens there.
	hosts := []string{"127.0.0.1:" + port, "localhost:" + port, "[::1]:1", "[::ffff:127.0.0.1]:" + port, "0.0.0.0:" + port, "169.254.169.254:80", "127.0.0.1:1"}
	for _, address := range hosts {
		conn, err := dial(t.Context(), "tcp", address)
		if err == nil {
			conn.Close()
		}
		//nolint:errorlint // it must be exactly this error: a wrapped error would contain the address
		if err != ErrRefused {
			t.Errorf("%s: %v, want %v", address, err, ErrRefused)
		}
	}
	if err := guard.CheckHost(ForRegistry, "169.254.169.254"); !errors.Is(err, ErrRefused) {
		t.Errorf("by a proxy: %v", err)
	}
	if err := guard.CheckHost(ForRegistry, "registry.example.com"); err != nil {
		t.Errorf("by a proxy: %v", err)
	}
	want := `
# HELP knative_egress_refused_connections_total [ALPHA] Number of connections that were refused because of their address, by purpose.
# TYPE knative_egress_refused_connections_total counter
knative_egress_refused_connections_total{for="events"} 7
knative_egress_refused_connections_total{for="registry"} 1
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "knative_egress_refused_connections_total"); err != nil {
		t.Error(err)
	}

	allowed := New(Options{AllowLoopback: true}).Dialer(ForEvents, time.Minute)
	conn, err := allowed(t.Context(), "tcp", "127.0.0.1:"+port)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := allowed(ctx, "tcp", "127.0.0.1:"+port); err == nil || errors.Is(err, ErrRefused) {
		t.Errorf("a canceled context: %v", err)
	}
}

func TestParsePrefix(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.0/8": "10.0.0.0/8", "10.0.0.5": "10.0.0.5/32", "fd00::/8": "fd00::/8", "::1": "::1/128",
		"::ffff:10.0.0.0/104": "10.0.0.0/8", "::ffff:10.0.0.5": "10.0.0.5/32", "0.0.0.0/0": "0.0.0.0/0",
	} {
		if got, err := ParsePrefix(text); err != nil || got.String() != want {
			t.Errorf("%q: %v, %v, want %s", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"":                   `"" must be a CIDR such as 10.0.0.0/8 or fd00::/8, or an IP address`,
		"10.0.0.0/33":        `"10.0.0.0/33" must be a CIDR such as 10.0.0.0/8 or fd00::/8, or an IP address`,
		"example.com":        `"example.com" must be a CIDR such as 10.0.0.0/8 or fd00::/8, or an IP address`,
		"fe80::1%eth0":       `"fe80::1%eth0" must be a CIDR such as 10.0.0.0/8 or fd00::/8, or an IP address`,
		"10.1.2.3/8":         `"10.1.2.3/8" must not have bits set after its prefix; 10.0.0.0/8 is the network`,
		"::ffff:10.0.0.0/40": `"::ffff:10.0.0.0/40" must have at least 96 bits, as it is an IPv4-mapped address`,
	} {
		if _, err := ParsePrefix(text); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	if err := Validate(prefixes("10.0.0.0/8", "::/0"), prefixes("10.0.0.0/16", "10.0.0.0/8")); err == nil ||
		err.Error() != "--allow-destination and --deny-destination may not both contain 10.0.0.0/8" {
		t.Errorf("both: %v", err)
	}
	if err := Validate(prefixes("10.0.0.0/8"), prefixes("10.0.0.0/16")); err != nil {
		t.Error(err)
	}
}

func TestDefaultGateways(t *testing.T) {
	const routes = "Iface\tDestination\tGateway \tFlags\n" +
		"eth0\t00000000\t0100F40A\t0003\n" +
		"eth0\t0000F40A\t00000000\t0001\n" +
		"eth1\t00000000\t00000000\t0001\n" +
		"eth2\t00000000\tzz\t0001\n"
	// The file is in the machine's byte order; the sample is little endian.
	if diff := cmp.Diff(addrs("10.244.0.1"), defaultGateways([]byte(routes)), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("default gateways (-want +got):\n%s", diff)
	}
	if _, err := DefaultGateways(); err != nil {
		t.Error(err)
	}
	if own, err := systemAddresses(); err != nil || len(own) == 0 {
		t.Errorf("this machine's addresses: %v, %v", own, err)
	}
}
