package app

import (
	"context"
	"crypto/tls"
	"net/url"

	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/app/lifecycle"
	"github.com/knative-apiserver/knative-apiserver/pkg/certs"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// The names of the addresses of a stream, which references select by ref.address.
const (
	addressHTTP  = "http"
	addressHTTPS = "https"
)

// addresses are the addresses at which streams accept events.
type addresses struct {
	// plain returns the URL of a stream without TLS.
	plain func(eventing.Key) string
	// encryption is the current setting.
	encryption func() settings.TransportEncryption
	// secure is nil if the broker does not serve HTTPS.
	secure *secureIngress
	// authenticated reports whether senders need tokens.
	authenticated func() bool
}

// secureIngress is the listener of the broker with TLS.
type secureIngress struct {
	// host is the host name, and possibly the port, that all streams share.
	host string
	// authority returns the trusted certificates in PEM, subscribe registers a function to call after each change of them.
	authority   func() []byte
	subscribe   func(changed func())
	certificate *certs.ServerCertificate
	// run maintains the authority until ctx is canceled. Nil if another module does.
	run func(ctx context.Context)
}

// mode returns the effective setting. Without a listener for HTTPS, permissive is disabled, and strict excludes all requests.
func (a *addresses) mode() settings.TransportEncryption {
	mode := a.encryption()
	if a.secure == nil && mode == settings.TransportPermissive {
		return settings.TransportDisabled
	}
	return mode
}

// unserved returns the reason why events are not accepted according to the setting; empty if they are.
func (a *addresses) unserved() string {
	if a.secure != nil {
		return ""
	}
	const without = "the server does not serve HTTPS for events (--broker-tls-port)"
	switch a.encryption() {
	case settings.TransportPermissive:
		return "'transport-encryption' has no effect: " + without
	case settings.TransportStrict:
		return "'transport-encryption' is strict, but " + without + ": Brokers and Channels accept no events"
	}
	return ""
}

// serves reports whether the broker accepts events with or without TLS.
func (a *addresses) serves(tls bool) bool {
	switch a.mode() {
	case settings.TransportPermissive:
		return true
	case settings.TransportStrict:
		return tls
	default:
		return !tls
	}
}

// of returns the addresses of a stream in its status: none if no scheme is served.
func (a *addresses) of(key eventing.Key) duckv1.AddressStatus {
	var audience *string
	if a.authenticated() {
		audience = ptr.To(eventing.Audience(key))
	}
	plain := duckv1.Addressable{Name: ptr.To(addressHTTP), URL: a.plain(key), Audience: audience}
	mode := a.mode()
	if mode == settings.TransportDisabled {
		return duckv1.AddressStatus{Address: &plain}
	}
	if a.secure == nil {
		return duckv1.AddressStatus{}
	}
	secure := duckv1.Addressable{Name: ptr.To(addressHTTPS), URL: a.secure.url(key), Audience: audience}
	if authority := a.secure.authority(); len(authority) > 0 {
		secure.CACerts = ptr.To(string(authority))
	}
	if mode == settings.TransportStrict {
		return duckv1.AddressStatus{Address: &secure, Addresses: []duckv1.Addressable{secure}}
	}
	return duckv1.AddressStatus{Address: &plain, Addresses: []duckv1.Addressable{secure, plain}}
}

// urls returns the URLs of a stream in all modes.
func (a *addresses) urls(key eventing.Key) []string {
	all := []string{a.plain(key)}
	if a.secure != nil {
		all = append(all, a.secure.url(key))
	}
	return all
}

// url returns the URL of a stream, which is a path of one host: certificates name no Channels.
func (s *secureIngress) url(key eventing.Key) string { return urlOf(addressHTTPS, s.host, key) }

// ingressAuthority is the module of an authority that only the broker uses.
type ingressAuthority struct {
	lifecycle.Tasks
	run func(ctx context.Context)
}

// Name implements lifecycle.Module.
func (*ingressAuthority) Name() string { return "broker certificates" }

// Start implements lifecycle.Module.
func (m *ingressAuthority) Start(ctx context.Context, fail func(error)) error {
	m.Begin(ctx, fail)
	m.Run(m.run)
	return nil
}

// tls returns the configuration of the listener.
func (s *secureIngress) tls() *tls.Config { return s.certificate.TLS() }

// urlOf returns the URL of a stream at a host and port that all streams share.
func urlOf(scheme, host string, key eventing.Key) string {
	u := url.URL{Scheme: scheme, Host: host}
	if key.Kind == eventing.Channel {
		u.Path = "/" + channelPath
	}
	u.Path += "/" + key.Namespace + "/" + key.Name
	return u.String()
}
