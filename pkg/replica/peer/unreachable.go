package peer

import (
	"crypto/tls"
	"errors"
	"net"
)

// IsUnreachable tells whether an error of a Client is that there was no connection, so that nothing of the request was
// sent.
func IsUnreachable(err error) bool {
	var dial *net.OpError
	var verification *tls.CertificateVerificationError
	return errors.As(err, &dial) && dial.Op == "dial" || errors.As(err, &verification)
}
