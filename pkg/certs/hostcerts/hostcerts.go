// Package hostcerts provides the certificates of public host names to gateways. A Provisioner issues them, or reads them from Secrets, and
// streams them to gateways that may read neither the authority nor Secrets; there a Receiver has them.
package hostcerts

import (
	"context"
	"crypto/tls"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Owner identifies the object that a host name belongs to.
type Owner struct {
	Kind string
	Key  types.NamespacedName
}

// Request is a request for the certificate of a host name.
type Request struct {
	// Host is in lower case.
	Host string
	// Secret is the name of the Secret with the certificate, in the namespace of the owner. Empty issues a certificate.
	Secret string
	// ACME is true if an ACME server issues the certificate, not the own authority.
	ACME bool
}

// State is the state of the certificate of a host name.
type State struct {
	// Ready is true if the gateway of this replica has a certificate.
	Ready bool
	// Outdated is true if that is not the requested certificate, but one that was valid before.
	Outdated bool
	// Problem is why there is no certificate, or not the requested one, or what clients may dislike about it. It is a clause without a full stop, or empty.
	Problem string
	// Failed is true if the ACME server refused the last order of a certificate that is missing or due for renewal.
	Failed bool
}

// ACME obtains certificates from an ACME server. Its methods may be called concurrently.
type ACME interface {
	// Await waits until stored certificates are known, for a limited time.
	Await(ctx context.Context)
	// Require makes it obtain the certificate of a host name, on behalf of a namespace, and renew it until Release.
	Require(host, namespace string)
	Release(host string)
	// Certificate returns the certificate of a host name, or nil, and its state.
	Certificate(host string) (*tls.Certificate, State)
	// Challenge returns the pending challenge of a host name, or nil.
	Challenge(host string) *Challenge
	// Subscribe makes changed be called after changes of certificates, states and challenges. It does not hold a lock then.
	Subscribe(changed func(hosts []string))
	// Run obtains certificates until ctx is canceled.
	Run(ctx context.Context)
}

// Challenge is a pending challenge of an ACME server, which gateways answer (RFC 8555 8).
type Challenge struct {
	Token string `json:"token"`
	// Response is the key authorization.
	Response string `json:"response"`
	// TLS is true for a challenge by TLS-ALPN-01, false by HTTP-01.
	TLS bool `json:"tls,omitempty"`
}

// Store has the certificates of a gateway.
type Store interface {
	// Update replaces the certificates of some host names; nil removes one. It is effective when the call returns.
	Update(certificates map[string]*tls.Certificate)
	// SetHTTPChallenge makes the gateway answer a challenge by HTTP-01; an empty token ends it. SetTLSChallenge makes it serve the
	// certificate of a challenge by TLS-ALPN-01; nil ends it.
	SetHTTPChallenge(host, token, response string)
	SetTLSChallenge(host string, certificate *tls.Certificate)
	// SetTicketKeys replaces the keys of session tickets: the first one encrypts, all decrypt. There is at least one.
	SetTicketKeys(keys [][32]byte)
}

// none is the Store of a replica without a gateway.
type none struct{}

func (none) Update(map[string]*tls.Certificate)       {}
func (none) SetHTTPChallenge(_, _, _ string)          {}
func (none) SetTLSChallenge(string, *tls.Certificate) {}
func (none) SetTicketKeys([][32]byte)                 {}

// subscribers are called with the owners of a host name whose State has changed.
type subscribers struct {
	mu  sync.Mutex
	all []func(Owner) // guarded by mu
}

// Subscribe makes changed be called after each change of a State, with the owner of the host name. It must not block.
func (s *subscribers) Subscribe(changed func(Owner)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(slices.Clip(s.all), changed)
}

func (s *subscribers) notify(owners []Owner) {
	s.mu.Lock()
	all := s.all
	s.mu.Unlock()
	for _, changed := range all {
		for _, owner := range owners {
			changed(owner)
		}
	}
}

// claims are the requests of owners. Host names usually have one owner; while they move between two, both may request a certificate, and
// the latest request counts.
type claims struct {
	byOwner map[Owner][]Request
	byHost  map[string][]claim
}

// claim is the request of one owner.
type claim struct {
	Owner
	secret string
	acme   bool
}

func newClaims() claims {
	return claims{byOwner: map[Owner][]Request{}, byHost: map[string][]claim{}}
}

// set replaces the requests of an owner. It returns the host names of the previous and the new ones.
func (c *claims) set(owner Owner, requests []Request) (affected []string) {
	for _, r := range c.byOwner[owner] {
		left := slices.DeleteFunc(c.byHost[r.Host], func(other claim) bool { return other.Owner == owner })
		if c.byHost[r.Host] = left; len(left) == 0 {
			delete(c.byHost, r.Host)
		}
		affected = append(affected, r.Host)
	}
	delete(c.byOwner, owner)
	if len(requests) > 0 {
		c.byOwner[owner] = slices.Clone(requests)
	}
	for _, r := range requests {
		c.byHost[r.Host] = append(c.byHost[r.Host], claim{owner, r.Secret, r.ACME})
		affected = append(affected, r.Host)
	}
	slices.Sort(affected)
	return slices.Compact(affected)
}

// effective returns the request that counts for a host name.
func (c *claims) effective(host string) (claim, bool) {
	all := c.byHost[host]
	if len(all) == 0 {
		return claim{}, false
	}
	return all[len(all)-1], true
}

// owners returns the owners of a host name.
func (c *claims) owners(host string) []Owner {
	var owners []Owner
	for _, claimed := range c.byHost[host] {
		owners = append(owners, claimed.Owner)
	}
	return owners
}
