package flow

import (
	"net"
	"net/netip"
	"testing"
)

// TestArrivalOfQuietClient covers that one client, whatever it holds, leaves memory to connections of others, also while namespaces hold the
// whole limit.
func TestArrivalOfQuietClient(t *testing.T) {
	const limit, size = 1 << 20, 1 << 10
	for name, full := range map[string]bool{"an attacker alone": false, "namespaces hold the limit": true} {
		t.Run(name, func(t *testing.T) {
			b := NewBudget(limit, 0)
			greedy := fill(b, "10.0.0.1", size)
			if full {
				b.Add("a", limit-b.Used())
			}
			greedy = append(greedy, fill(b, "10.0.0.1", size)...)
			before := b.Used()
			quiet := fill(b, "10.0.0.2", size)
			if held := held(quiet); held < limit/clientPart/4-size || held != b.Used()-before {
				t.Errorf("a quiet client holds %d bytes, want at least %d; in all %d were added", held, limit/clientPart/4-size, b.Used()-before)
			}
			if held := held(append(greedy, quiet...)); held != b.Held("*") || held > limit/2+limit/clientPart {
				t.Errorf("clients hold %d bytes, the budget counts %d; want at most half and a sixteenth of %d", held, b.Held("*"), limit)
			}
			for _, a := range greedy {
				a.ReleaseAll()
			}
			for _, a := range quiet {
				a.Release(size / 2)
				a.Release(size / 2)
			}
			if b.Held("*") != 0 || b.ofClients != 0 || len(b.clients) != 0 {
				t.Errorf("after all were released, clients hold %d bytes, %d beyond the share of all, of %d clients", b.Held("*"), b.ofClients, len(b.clients))
			}
		})
	}
}

// TestArrivalBeyondTheLimit covers that clients use no more than an eighth beyond the limit, and that unknown clients have only the account.
func TestArrivalBeyondTheLimit(t *testing.T) {
	const limit, size = 1 << 20, 1 << 10
	b := NewBudget(limit, 0)
	b.Add("a", limit+limit/reservePart-2*size)
	if n := len(fill(b, "10.0.0.1", size)); n != 2 {
		t.Errorf("%d connections have memory, want 2", n)
	}
	b = NewBudget(limit, 0)
	b.Add("a", limit+limit/smallPart)
	if a := NewArrival(b, "*", netip.Addr{}); a.Reserve(2 * limit / smallPart) {
		t.Error("a client whose address is not known has memory of its own")
	}
}

func TestClientOf(t *testing.T) {
	for peer, want := range map[net.Addr]string{
		&net.TCPAddr{IP: net.ParseIP("10.0.0.1"), Port: 1}:    "10.0.0.1",
		&net.UDPAddr{IP: net.ParseIP("2001:db8::1"), Port: 1}: "2001:db8::1",
		&net.UnixAddr{Name: "socket"}:                         "invalid IP",
	} {
		if got := ClientOf(peer).String(); got != want {
			t.Errorf("%v: got %s, want %s", peer, got, want)
		}
	}
}

// fill reserves memory for connections of a client until a reservation fails.
func fill(b *Budget, client string, size int64) (arrivals []*Arrival) {
	for {
		a := NewArrival(b, "*", netip.MustParseAddr(client))
		if !a.Reserve(size) {
			return arrivals
		}
		arrivals = append(arrivals, a)
	}
}

func held(arrivals []*Arrival) (bytes int64) {
	for _, a := range arrivals {
		bytes += a.Held()
	}
	return bytes
}
