package certificates

import (
	"crypto/tls"
	"maps"
	"strings"
)

// ProtocolChallenge is the application protocol of handshakes that validate a host name (RFC 8737 4).
const ProtocolChallenge = "acme-tls/1"

// challenges are pending challenges of an ACME server by host name: by HTTP-01 and TLS-ALPN-01. Immutable.
type challenges struct {
	http map[string]httpChallenge
	tls  map[string]*tls.Certificate
}

// httpChallenge is a token and its key authorization.
type httpChallenge struct{ token, response string }

// SetHTTPChallenge adds the challenge of a host name by HTTP-01; an empty token removes it. The host name is in lower case.
func (s *Store) SetHTTPChallenge(host, token, response string) {
	s.editChallenges(func(c *challenges) {
		if delete(c.http, host); token != "" {
			c.http[host] = httpChallenge{token, response}
		}
	})
}

// SetTLSChallenge adds the certificate that answers a challenge by TLS-ALPN-01; nil removes it. The host name is in lower case.
func (s *Store) SetTLSChallenge(host string, certificate *tls.Certificate) {
	s.editChallenges(func(c *challenges) {
		if delete(c.tls, host); certificate != nil {
			c.tls[host] = certificate
		}
	})
}

func (s *Store) editChallenges(edit func(*challenges)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := &challenges{http: map[string]httpChallenge{}, tls: map[string]*tls.Certificate{}}
	if current := s.challenges.Load(); current != nil {
		maps.Copy(next.http, current.http)
		maps.Copy(next.tls, current.tls)
	}
	if edit(next); len(next.http)+len(next.tls) == 0 {
		next = nil
	}
	s.challenges.Store(next)
}

// Challenged reports whether any host name has a challenge.
func (s *Store) Challenged() bool { return s.challenges.Load() != nil }

// HTTPChallenge returns the response to the challenge of a host name with a token.
func (s *Store) HTTPChallenge(host, token string) (response string, ok bool) {
	current := s.challenges.Load()
	if current == nil {
		return "", false
	}
	c, found := current.http[strings.ToLower(host)]
	if !found || c.token != token {
		return "", false
	}
	return c.response, true
}

// ChallengeConfig returns the configuration of a handshake that validates a host name with a challenge by TLS-ALPN-01, or nil for all others.
// It implements tls.Config.GetConfigForClient.
func (s *Store) ChallengeConfig(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	current := s.challenges.Load()
	if current == nil || len(hello.SupportedProtos) != 1 || hello.SupportedProtos[0] != ProtocolChallenge {
		return nil, nil
	}
	certificate := current.tls[strings.ToLower(hello.ServerName)]
	if certificate == nil {
		return nil, nil
	}
	return &tls.Config{
		Certificates: []tls.Certificate{*certificate}, NextProtos: []string{ProtocolChallenge},
		MinVersion: tls.VersionTLS12, SessionTicketsDisabled: true,
	}, nil
}
