// Package certificates holds the TLS certificates of the gateway by host name.
package certificates

import (
	"crypto/tls"
	"hash/maphash"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
)

// shards is the number of parts of a Store. A change copies the parts that it affects.
const shards = 256

// Store has certificates by host name. The zero value is empty. Handshakes read it without a lock.
type Store struct {
	// mu guards changes.
	mu     sync.Mutex
	shards [shards]atomic.Pointer[shard]
	// challenges are the pending challenges of an ACME server; nil means none.
	challenges atomic.Pointer[challenges]
	// tickets encrypts the tickets of sessions. It has no other purpose.
	tickets tls.Config
}

// shard has the certificates of host names, and of wildcards by the name behind "*.". Immutable.
type shard struct{ hosts, wildcards map[string]*tls.Certificate }

// wildcard is the prefix of the names that cover one more label.
const wildcard = "*."

// seed is the seed of the hashes that choose a shard.
var seed = maphash.MakeSeed()

// shard returns the part with a name, a wildcard without its prefix.
func (s *Store) shard(name string) *atomic.Pointer[shard] {
	return &s.shards[maphash.String(seed, name)%shards]
}

// Set replaces all certificates. The keys are host names in lower case without trailing dot, or "*.example.com" for all names with
// exactly one more label than example.com. A handshake that has begun keeps the certificate that it chose.
func (s *Store) Set(certificates map[string]*tls.Certificate) {
	changes := maps.Clone(certificates)
	if changes == nil {
		changes = map[string]*tls.Certificate{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.shards {
		current := s.shards[i].Load()
		if current == nil {
			continue
		}
		for name := range current.hosts {
			if _, found := certificates[name]; !found {
				changes[name] = nil
			}
		}
		for parent := range current.wildcards {
			if _, found := certificates[wildcard+parent]; !found {
				changes[wildcard+parent] = nil
			}
		}
	}
	s.update(changes)
}

// Update replaces the certificates of the given names; nil removes one. See Set for the names.
func (s *Store) Update(certificates map[string]*tls.Certificate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.update(certificates)
}

// update is Update with mu held.
func (s *Store) update(certificates map[string]*tls.Certificate) {
	next := map[*atomic.Pointer[shard]]*shard{}
	for name, certificate := range certificates {
		parent, isWildcard := strings.CutPrefix(name, wildcard)
		at := s.shard(parent)
		copied := next[at]
		if copied == nil {
			copied = &shard{hosts: map[string]*tls.Certificate{}, wildcards: map[string]*tls.Certificate{}}
			if current := at.Load(); current != nil {
				maps.Copy(copied.hosts, current.hosts)
				maps.Copy(copied.wildcards, current.wildcards)
			}
			next[at] = copied
		}
		names := copied.hosts
		if isWildcard {
			names = copied.wildcards
		}
		if certificate == nil {
			delete(names, parent)
		} else {
			names[parent] = certificate
		}
	}
	for at, copied := range next {
		at.Store(copied)
	}
}

// GetCertificate returns the certificate of the server name that a client sent: the name's own, or a wildcard's. It implements
// tls.Config.GetCertificate. For an unknown or missing server name it returns no certificate and no error, because crypto/tls answers
// only that by the alert unrecognized_name (RFC 6066 3), if the configuration has no other certificates.
func (s *Store) GetCertificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	return s.get(hello.ServerName), nil
}

// Has reports whether a host name has a certificate, its own or a wildcard's. Case is ignored.
func (s *Store) Has(host string) bool { return s.get(host) != nil }

// Covers reports whether the certificate of a server name, as handshakes get it, is valid for another host name too.
func (s *Store) Covers(serverName, host string) bool {
	certificate := s.get(serverName)
	return certificate != nil && (certificate == s.get(host) || certificate.Leaf != nil && certificate.Leaf.VerifyHostname(host) == nil)
}

// get returns the certificate of a host name, or nil.
func (s *Store) get(host string) *tls.Certificate {
	if host == "" {
		return nil
	}
	host = strings.ToLower(host)
	if current := s.shard(host).Load(); current != nil {
		if certificate := current.hosts[host]; certificate != nil {
			return certificate
		}
	}
	label, parent, _ := strings.Cut(host, ".")
	if label == "" || label == "*" {
		return nil
	}
	if current := s.shard(parent).Load(); current != nil {
		return current.wildcards[parent]
	}
	return nil
}
