package egress

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"
)

// routesFile lists the IPv4 routes of a Linux machine.
const routesFile = "/proc/net/route"

// systemAddresses returns the addresses of the network interfaces.
func systemAddresses() ([]netip.Addr, error) {
	found, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list addresses of network interfaces: %w", err)
	}
	addresses := make([]netip.Addr, 0, len(found))
	for _, each := range found {
		if prefix, err := netip.ParsePrefix(each.String()); err == nil {
			addresses = append(addresses, prefix.Addr().Unmap().WithZone(""))
		}
	}
	return addresses, nil
}

// DefaultGateways returns the IPv4 addresses of the default gateways. In a Pod, most network plugins use addresses of the
// node. It returns none on systems other than Linux.
func DefaultGateways() ([]netip.Addr, error) {
	routes, err := os.ReadFile(routesFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list default gateways: %w", err)
	}
	return defaultGateways(routes), nil
}

// defaultGateways parses lines with an interface, a destination and a gateway, the latter two in hexadecimal and in the
// machine's byte order.
func defaultGateways(routes []byte) []netip.Addr {
	var gateways []netip.Addr
	lines := bufio.NewScanner(bytes.NewReader(routes))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 3 || fields[1] != "00000000" {
			continue
		}
		gateway, err := hex.DecodeString(fields[2])
		if err != nil || len(gateway) != 4 {
			continue
		}
		var addr [4]byte
		binary.NativeEndian.PutUint32(addr[:], binary.BigEndian.Uint32(gateway))
		if to := netip.AddrFrom4(addr); !to.IsUnspecified() {
			gateways = append(gateways, to)
		}
	}
	return gateways
}
