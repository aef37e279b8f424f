package egress

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// loopback are the addresses of the machine itself.
var loopback = prefixes("127.0.0.0/8", "::1/128")

// reserved are the addresses of the node, of its metadata service or of more than one host.
var reserved = prefixes(
	// Unspecified: Linux connects it to the machine itself.
	"0.0.0.0/8", "::/128",
	// Link-local, with the metadata services of most clouds.
	"169.254.0.0/16", "fe80::/10",
	// Site-local, deprecated.
	"fec0::/10",
	// Multicast, reserved and broadcast.
	"224.0.0.0/4", "240.0.0.0/4", "ff00::/8",
	// Metadata services and node agents at other addresses: Alibaba, Azure, Oracle, AWS, Google.
	"100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32", "fd00:ec2::254/128", "fd20:ce::254/128",
)

// embedding are the IPv6 prefixes whose addresses embed an IPv4 address that a translator or tunnel may connect to, and
// the byte at which that address begins.
var embedding = []struct {
	prefix netip.Prefix
	at     int
}{
	{netip.MustParsePrefix("::/96"), 12},             // IPv4-compatible
	{netip.MustParsePrefix("::ffff:0:0:0/96"), 12},   // IPv4-translated
	{netip.MustParsePrefix("64:ff9b::/96"), 12},      // NAT64
	{netip.MustParsePrefix("64:ff9b:1::/48"), 12},    // NAT64 for local use
	{netip.MustParsePrefix("2002::/16"), 2},          // 6to4
	{netip.MustParsePrefix("::200:5efe:0:0/96"), 12}, // ISATAP without a network of its own
	{netip.MustParsePrefix("::5efe:0:0/96"), 12},     // ISATAP, the private form
	{netip.MustParsePrefix("fe80::5efe:0:0/96"), 12}, // ISATAP, link-local
	{netip.MustParsePrefix("2001:0:0:0::/32"), 4},    // Teredo: its server
}

func prefixes(texts ...string) []netip.Prefix {
	parsed := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		parsed[i] = netip.MustParsePrefix(text)
	}
	return parsed
}

// rule allows or refuses the addresses of a prefix.
type rule struct {
	prefix netip.Prefix
	allow  bool
}

// rules are in order of precedence: the first rule that contains an address decides.
type rules []rule

// newRules returns the rules for the operator's prefixes and the built-in refusals. The longest prefix decides; of two equal
// prefixes, the operator's.
func newRules(o Options) rules {
	var all rules
	add := func(allow bool, of []netip.Prefix) {
		for _, prefix := range of {
			all = append(all, rule{prefix, allow})
		}
	}
	add(false, o.Deny)
	add(true, o.Allow)
	if !o.AllowLoopback {
		add(false, loopback)
	}
	add(false, reserved)
	slices.SortStableFunc(all, func(a, b rule) int { return cmp.Compare(b.prefix.Bits(), a.prefix.Bits()) })
	return all
}

// decide reports whether an address is allowed, and the length of the prefix that decides, 0 if none does.
func (r rules) decide(addr netip.Addr) (allow bool, bits int) {
	for _, rule := range r {
		if rule.prefix.Contains(addr) {
			return rule.allow, rule.prefix.Bits()
		}
	}
	return true, 0
}

// embedded returns the IPv4 address that an IPv6 address embeds, if any.
func embedded(addr netip.Addr) (netip.Addr, bool) {
	if addr.IsLoopback() {
		return netip.Addr{}, false
	}
	for _, form := range embedding {
		if form.prefix.Contains(addr) {
			bytes := addr.As16()
			return netip.AddrFrom4([4]byte(bytes[form.at : form.at+4])), true
		}
	}
	return netip.Addr{}, false
}

// ParsePrefix parses a CIDR such as 10.0.0.0/8, or a single address.
func ParsePrefix(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil && addr.Zone() == "" {
		addr = addr.Unmap()
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q must be a CIDR such as 10.0.0.0/8 or fd00::/8, or an IP address", text)
	}
	if prefix.Addr().Is4In6() {
		if prefix.Bits() < 96 {
			return netip.Prefix{}, fmt.Errorf("%q must have at least 96 bits, as it is an IPv4-mapped address", text)
		}
		prefix = netip.PrefixFrom(prefix.Addr().Unmap(), prefix.Bits()-96)
	}
	if prefix != prefix.Masked() {
		return netip.Prefix{}, fmt.Errorf("%q must not have bits set after its prefix; %s is the network", text, prefix.Masked())
	}
	return prefix, nil
}

// Validate returns an error for prefixes that are both allowed and denied.
func Validate(allow, deny []netip.Prefix) error {
	var errs []error
	for _, prefix := range allow {
		if slices.Contains(deny, prefix) {
			errs = append(errs, fmt.Errorf("--allow-destination and --deny-destination may not both contain %s", prefix))
		}
	}
	return errors.Join(errs...)
}
