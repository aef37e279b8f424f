package certificates

import "crypto/tls"

// SetTicketKeys replaces the keys that encrypt the tickets of sessions (RFC 5077): the first one encrypts, all decrypt. There must be at least one.
// Before, the Store has a random one, which it replaces every day. Gateways with the same keys resume the sessions of each other.
func (s *Store) SetTicketKeys(keys [][32]byte) { s.tickets.SetSessionTicketKeys(keys) }

// WrapSession returns the ticket of a session, which belongs to the server name that it begins with. It implements tls.Config.WrapSession.
func (s *Store) WrapSession(state tls.ConnectionState, session *tls.SessionState) ([]byte, error) {
	session.Extra = append(session.Extra, []byte(state.ServerName))
	return s.tickets.EncryptTicket(state, session)
}

// UnwrapSession returns the session of a ticket if it belongs to the server name of the connection and that still has a certificate: a resumed session
// skips GetCertificate. It implements tls.Config.UnwrapSession.
func (s *Store) UnwrapSession(identity []byte, state tls.ConnectionState) (*tls.SessionState, error) {
	session, err := s.tickets.DecryptTicket(identity, state)
	if err != nil || session == nil {
		return nil, err
	}
	if extra := session.Extra; len(extra) == 0 || string(extra[len(extra)-1]) != state.ServerName || !s.Has(state.ServerName) {
		return nil, nil
	}
	return session, nil
}
