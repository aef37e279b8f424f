package images

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/knative-apiserver/knative-apiserver/pkg/egress"
)

// maxReason and maxLogged bound the reported part of an error in messages to tenants and in the log, in bytes.
const maxReason, maxLogged = 256, 1024

// codes are the error codes of the distribution specification that are reported by name.
var codes = []transport.ErrorCode{
	transport.BlobUnknownErrorCode, transport.DeniedErrorCode, transport.ManifestUnknownErrorCode, transport.ManifestInvalidErrorCode,
	transport.NameInvalidErrorCode, transport.NameUnknownErrorCode, transport.TooManyRequestsErrorCode, transport.UnauthorizedErrorCode,
	transport.UnavailableErrorCode, transport.UnsupportedErrorCode,
}

// reason returns an error for tenants. It contains no part of the registry's response, because the registry may be any
// server that a tenant names.
func reason(err error) error {
	var (
		answered  *transport.Error
		resolving *net.DNSError
		number    syscall.Errno
		record    tls.RecordHeaderError
		authority x509.UnknownAuthorityError
		hostname  x509.HostnameError
		verify    *tls.CertificateVerificationError
		timeout   net.Error
	)
	for _, known := range []error{egress.ErrRefused, errTooLarge, errOverBudget, errRedirects, errRedirect} {
		if errors.Is(err, known) {
			return known
		}
	}
	switch {
	case errors.As(err, &answered):
		text := fmt.Sprintf("the registry responds with %d %s", answered.StatusCode, http.StatusText(answered.StatusCode))
		for _, diagnostic := range answered.Errors {
			if slices.Contains(codes, diagnostic.Code) {
				text += " " + string(diagnostic.Code)
				break
			}
		}
		return errors.New(strings.TrimSpace(text))
	case errors.Is(err, context.DeadlineExceeded):
		return errors.New("the registry does not respond in time")
	case errors.As(err, &resolving):
		return errors.New("the name of the registry cannot be resolved")
	case errors.As(err, &authority):
		return errors.New("the certificate of the registry is signed by an unknown authority")
	case errors.As(err, &hostname):
		return errors.New("the certificate of the registry is for another host")
	case errors.As(err, &verify):
		return errors.New("the certificate of the registry is not valid")
	case errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch):
		return errors.New("the registry does not serve https")
	case errors.As(err, &number):
		return fmt.Errorf("connect to the registry: %w", number)
	case errors.As(err, &timeout) && timeout.Timeout():
		return errors.New("the registry does not respond in time")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the registry closed the connection")
	}
	return errors.New("the response is not a response of a registry")
}
