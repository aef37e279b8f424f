package flow

import (
	"net"
	"net/netip"
)

// Arrival is what a connection holds of a Budget for requests whose namespace is not known yet: the connection itself, its handshake, and heads
// that are still arriving. All clients share an account, which has the share of one namespace.
//
// So that a client cannot lock out others, each address may hold more, as many bytes as are free of a sixteenth of the limit: half of it
// while it is alone, a third each when two compete. Clients whose address is not known have only the account.
//
// An Arrival is not safe for concurrent use.
type Arrival struct {
	budget  *Budget
	account string
	client  netip.Addr
	// shared are the bytes within the share of the account, own those beyond it.
	shared, own int64
}

// NewArrival returns the Arrival of a connection of a client, the zero address if it is not known. The account must not be a valid name of a namespace.
func NewArrival(budget *Budget, account string, client netip.Addr) *Arrival {
	return &Arrival{budget: budget, account: account, client: client}
}

// Reserve adds bytes to the bytes that the connection holds. It returns false without adding any if neither the share of all clients nor the
// one of this client allows it.
func (a *Arrival) Reserve(bytes int64) bool {
	b := a.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.reserveLocked(a.account, bytes) {
		a.shared += bytes
		return true
	}
	fits := b.clients[a.client]+bytes <= b.limit/clientPart-b.ofClients-bytes && b.freeLocked(a.account, bytes) >= -b.limit/reservePart
	if !fits || !a.client.IsValid() {
		return false
	}
	a.own += bytes
	b.ofClients += bytes
	add(b.clients, a.client, bytes)
	b.addLocked(a.account, bytes)
	return true
}

// Release subtracts bytes that were reserved.
func (a *Arrival) Release(bytes int64) {
	b := a.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	own := min(bytes, a.own)
	a.own -= own
	a.shared -= bytes - own
	b.ofClients -= own
	add(b.clients, a.client, -own)
	b.addLocked(a.account, -bytes)
}

// Held returns the bytes that the connection holds.
func (a *Arrival) Held() int64 { return a.shared + a.own }

// ReleaseAll subtracts all bytes that the connection holds.
func (a *Arrival) ReleaseAll() { a.Release(a.Held()) }

// ClientOf returns the address of a peer without its port, or the zero address if it has none.
func ClientOf(peer net.Addr) netip.Addr {
	if peer, ok := peer.(interface{ AddrPort() netip.AddrPort }); ok {
		return peer.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}
