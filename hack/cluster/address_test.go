//go:build linux

package main

import (
	"net/netip"
	"strings"
	"testing"
)

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

func TestAPIServerAddress(t *testing.T) {
	for name, test := range map[string]struct {
		wanted, want, wantErr string
		machine               []netip.Prefix
	}{
		"first that is usable": {
			machine: prefixes("127.0.0.1/8", "::1/128", "169.254.3.4/16", "fd00::2/64", "192.0.2.2/24", "10.0.0.1/8"),
			want:    "192.0.2.2",
		},
		"override":          {wanted: "10.0.0.1", machine: prefixes("192.0.2.2/24", "10.0.0.1/8"), want: "10.0.0.1"},
		"only loopback":     {machine: prefixes("127.0.0.1/8", "::1/128"), wantErr: "has no IPv4 address besides loopback"},
		"loopback wanted":   {wanted: "127.0.0.1", wantErr: "must be an address that is not loopback"},
		"any address":       {wanted: "0.0.0.0", wantErr: "must be an address that is not loopback"},
		"IPv6 wanted":       {wanted: "fd00::2", wantErr: "must be an IPv4 address"},
		"no address":        {wanted: "localhost", wantErr: "--bind-address"},
		"link-local wanted": {wanted: "169.254.3.4", wantErr: "link-local"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := apiServerAddress(test.wanted, test.machine)
			if test.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), test.wantErr) {
					t.Fatalf("error %v, want %q", err, test.wantErr)
				}
				return
			}
			if err != nil || got.String() != test.want {
				t.Errorf("got %s, %v; want %s", got, err, test.want)
			}
		})
	}
}

func TestServiceRange(t *testing.T) {
	for name, test := range map[string]struct {
		machine []netip.Prefix
		want    string
	}{
		"free":               {prefixes("192.0.2.2/24"), "10.96.0.0/20"},
		"inside a network":   {prefixes("10.1.2.3/8"), "172.28.240.0/20"},
		"contains a network": {prefixes("10.96.3.4/30"), "172.28.240.0/20"},
		"two are taken":      {prefixes("10.1.2.3/8", "172.16.0.1/12"), "192.168.224.0/20"},
		"all are taken":      {prefixes("10.1.2.3/8", "172.16.0.1/12", "192.168.0.1/16"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := serviceRange(test.machine)
			if (err != nil) != (test.want == "") || (err == nil && got.String() != test.want) {
				t.Errorf("got %s, %v; want %q", got, err, test.want)
			}
		})
	}
}

func TestFreePortsDiffer(t *testing.T) {
	ports, err := freePorts("127.0.0.1", 20)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for _, port := range ports {
		if seen[port] || port < 20000 || port >= 30000 {
			t.Errorf("port %d is duplicate or out of range: %v", port, ports)
		}
		seen[port] = true
	}
}

// TestFreePortsAreReserved checks that no other process gets a port. It locks a second file, as another process would.
func TestFreePortsAreReserved(t *testing.T) {
	ports, err := freePorts("127.0.0.1", 1)
	if err != nil {
		t.Fatal(err)
	}
	if lock, err := tryLock(portFile(ports[0])); lock != nil || err != nil {
		t.Errorf("port %d can be locked: %v", ports[0], err)
	}
}

func TestPodRange(t *testing.T) {
	for name, test := range map[string]struct {
		used []netip.Prefix
		want string
	}{
		"free":           {prefixes("192.0.2.2/24", "10.96.0.0/20"), "10.244.0.0/20"},
		"a route is in":  {prefixes("10.244.3.0/24"), "172.29.240.0/20"},
		"only the third": {prefixes("10.0.0.0/8", "172.16.0.0/12"), "192.168.208.0/20"},
		"all are taken":  {prefixes("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := podRange(test.used)
			if test.want == "" {
				if err == nil || !strings.Contains(err.Error(), "no range for pod addresses is free") {
					t.Errorf("got %s, %v", got, err)
				}
				return
			}
			if err != nil || got.String() != test.want {
				t.Errorf("got %s, %v; want %s", got, err, test.want)
			}
		})
	}
}
