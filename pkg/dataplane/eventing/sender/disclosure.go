package sender

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/egress"
)

// Disclosure reports whether a host belongs to a namespace, so that its users may see the bodies of errors from there. A
// tenant may name any host as a destination, but learns from others only the status of the response.
type Disclosure func(ctx context.Context, host, namespace string) bool

// LocalHosts discloses responses of the hosts <name>.<namespace>.localhost, which Services of this machine have.
func LocalHosts(_ context.Context, host, namespace string) bool {
	labels := labelsOf(host)
	return len(labels) == 3 && labels[1] == namespace && labels[2] == "localhost"
}

// ClusterHosts discloses responses of the Services of a namespace: the hosts <name>.<namespace>.svc, with or without the
// cluster's domain. lookup returns the canonical name of a host. Services that are aliases of another name (ExternalName)
// are not disclosed, unless that name is one of shared: the names of the Services that all Routes and Channels are aliases of.
func ClusterHosts(domain string, lookup func(ctx context.Context, host string) (string, error), shared ...string) Disclosure {
	suffix := append([]string{"svc"}, labelsOf(domain)...)
	return func(ctx context.Context, host, namespace string) bool {
		labels := labelsOf(host)
		if len(labels) < 3 || labels[1] != namespace || labels[2] != "svc" || len(labels) > 3 && !slices.Equal(labels[2:], suffix) {
			return false
		}
		canonical, err := lookup(ctx, strings.Join(append(labels[:2:2], suffix...), ".")+".")
		if err != nil {
			return false
		}
		leadsTo := labelsOf(canonical)
		return slices.Equal(leadsTo, append(labels[:2:2], suffix...)) || slices.Contains(shared, strings.Join(leadsTo, "."))
	}
}

func labelsOf(host string) []string {
	return strings.Split(strings.ToLower(strings.TrimSuffix(host, ".")), ".")
}

// lookupTimeout bounds the lookup of a name that decides about a disclosure.
const lookupTimeout = 2 * time.Second

// errNoReply replaces errors whose text may quote a response that is not an event.
var errNoReply = fmt.Errorf("%w, but the answer %w", status(http.StatusOK), event.ErrNotEvent)

// disclose returns a result without the contents of the response, unless the namespace may see them.
func (s *Sender) disclose(ctx context.Context, result Result, target *url.URL, namespace string) Result {
	if len(result.Body) == 0 && result.ReplyErr == nil {
		return result
	}
	// The attempt may have failed while the body was read.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookupTimeout)
	defer cancel()
	if s.discloses != nil && s.discloses(ctx, target.Hostname(), namespace) {
		return result
	}
	result.Body = nil
	if result.ReplyErr != nil && !errors.Is(result.ReplyErr, errTooLarge) {
		result.ReplyErr = failed(target, errNoReply)
	}
	return result
}

// tokenStart is the number of characters of a token by which an answer that quotes it is recognized. They do not suffice to use it.
const tokenStart = 24

// withoutToken returns a result without the contents of the response if they quote the token of the request, which must not appear in a
// status, a log or a dead letter.
func withoutToken(result Result, target *url.URL, token string) Result {
	if token == "" {
		return result
	}
	start, signature := token[:min(len(token), tokenStart)], token[strings.LastIndexByte(token, '.')+1:]
	quotes := func(text string) bool { return strings.Contains(text, start) || strings.Contains(text, signature) }
	if quotes(string(result.Body)) {
		result.Body = nil
	}
	if result.ReplyErr != nil && quotes(result.ReplyErr.Error()) {
		result.ReplyErr = failed(target, errNoReply)
	}
	return result
}

// errNotHTTP replaces errors whose text quotes data from the recipient.
var errNotHTTP = errors.New("the connection broke, or what the recipient sent is not an HTTP response")

// withoutQuotes returns an error unchanged if its text comes from this machine, and errNotHTTP if it may quote data from the recipient.
func withoutQuotes(err error) error {
	if err == nil {
		return nil
	}
	var (
		network   net.Error
		record    tls.RecordHeaderError
		verify    *tls.CertificateVerificationError
		authority x509.UnknownAuthorityError
		hostname  x509.HostnameError
	)
	for _, known := range []error{io.EOF, io.ErrUnexpectedEOF, errHost, errHeader, errInterim, egress.ErrRefused, http.ErrSchemeMismatch, context.Canceled} {
		if errors.Is(err, known) {
			return err
		}
	}
	if errors.As(err, &network) || errors.As(err, &record) || errors.As(err, &verify) || errors.As(err, &authority) || errors.As(err, &hostname) {
		return err
	}
	if interim := (*interimError)(nil); errors.As(err, &interim) {
		return &interimError{code: interim.code, err: errNotHTTP}
	}
	return errNotHTTP
}

// quiet is the body of a response whose errors do not quote it.
type quiet struct{ io.ReadCloser }

// Read implements io.Reader.
func (b quiet) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	return n, withoutQuotes(err)
}
