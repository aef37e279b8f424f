package http1

// Upstream is an instance that requests are sent to, with its idle connections.
type Upstream struct {
	address string
}

// NewUpstream returns an upstream at host:port.
func NewUpstream(address string) *Upstream { return &Upstream{address: address} }

// Address returns the host:port.
func (u *Upstream) Address() string { return u.address }
