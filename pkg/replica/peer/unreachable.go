package peer

import (
	"crypto/tls"
	"errors"
	"net"
)

// IsUnreachable reports whether an error of a Client means that it had no connection, so that no part of the request was sent.
func IsUnreachable(err error) bool {
	var dial *net.OpError
	var verification *tls.CertificateVerificationError
	return errors.As(err, &dial) && dial.Op == "dial" || errors.As(err, &verification)
}
