package main

import (
	"net/netip"
	"strings"

	"github.com/spf13/pflag"

	"github.com/knative-apiserver/knative-apiserver/pkg/egress"
)

// destinationOptions are the flags of the addresses that tenants may name.
type destinationOptions struct{ allow, deny prefixList }

func (o *destinationOptions) addFlags(flags *pflag.FlagSet, refused string) {
	flags.Var(&o.allow, "allow-destination",
		"CIDRs, separated by commas, of addresses of subscribers, replies, dead-letter sinks and registries that are allowed although they are refused by default. "+
			"May be repeated. Refused by default are "+refused+". The most specific CIDR that contains an address decides.")
	flags.Var(&o.deny, "deny-destination",
		"CIDRs, separated by commas, of addresses of subscribers, replies, dead-letter sinks and registries that are refused. May be repeated.")
}

func (o *destinationOptions) validate() error { return egress.Validate(o.allow, o.deny) }

func (o *destinationOptions) config() egress.Options {
	return egress.Options{Allow: o.allow, Deny: o.deny}
}

// addTrustedProxiesFlag registers the flag of the proxies in front of the gateway.
func addTrustedProxiesFlag(flags *pflag.FlagSet, proxies *prefixList) {
	flags.Var(proxies, "trusted-proxies",
		"CIDRs, separated by commas, of the load balancers and proxies in front of the gateway. May be repeated. Their headers X-Forwarded-For, X-Forwarded-Proto, "+
			"X-Forwarded-Host and Forwarded are kept and extended; other clients' are replaced. A client that they report to use HTTPS is not redirected to HTTPS.")
}

// prefixList is a flag with networks, which may be repeated.
type prefixList []netip.Prefix

// Set implements pflag.Value. It adds to the values set before.
func (l *prefixList) Set(value string) error {
	for text := range strings.SplitSeq(value, ",") {
		prefix, err := egress.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			return err
		}
		*l = append(*l, prefix)
	}
	return nil
}

// String implements pflag.Value.
func (l *prefixList) String() string {
	texts := make([]string, len(*l))
	for i, prefix := range *l {
		texts[i] = prefix.String()
	}
	return strings.Join(texts, ",")
}

// Type implements pflag.Value.
func (l *prefixList) Type() string { return "CIDRs" }
