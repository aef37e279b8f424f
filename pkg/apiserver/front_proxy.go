package apiserver

import (
	"crypto/sha256"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
)

const (
	// frontProxyTTL is how long a certificate that was verified is taken for verified.
	frontProxyTTL = time.Minute
	// frontProxyCount bounds how many certificates are remembered. There is one for each kube-apiserver.
	frontProxyCount = 64
)

// frontProxy authenticates requests that kube-aggregator passes on, as the library does, but remembers whose
// certificate it has verified: it is the same one for all of them, and verifying its signature again for
// each request takes an eighth of the time of a read.
type frontProxy struct {
	config *authenticatorfactory.RequestHeaderConfig
	// verifying checks the certificate and then reads the headers, reading does the second alone.
	verifying, reading authenticator.Request
	verified           *cache.LRUExpireCache
	now                func() time.Time
}

// newFrontProxy returns an authenticator for requests of the front proxy. It knows nothing of any other
// request, and has no opinion on it.
func newFrontProxy(config *authenticatorfactory.RequestHeaderConfig) *frontProxy {
	return &frontProxy{
		config: config,
		verifying: group.NewAuthenticatedGroupAdder(headerrequest.NewDynamicVerifyOptionsSecure(config.CAContentProvider.VerifyOptions,
			config.AllowedClientNames, config.UsernameHeaders, config.UIDHeaders, config.GroupHeaders, config.ExtraHeaderPrefixes)),
		reading: group.NewAuthenticatedGroupAdder(headerrequest.NewDynamic(
			config.UsernameHeaders, config.UIDHeaders, config.GroupHeaders, config.ExtraHeaderPrefixes)),
		verified: cache.NewLRUExpireCache(frontProxyCount),
		now:      time.Now,
	}
}

// verifiedKey is what makes a verification hold: the certificate, the authorities and the allowed names.
type verifiedKey struct {
	certificate, authorities [sha256.Size]byte
	names                    string
}

// AuthenticateRequest returns the user that the front proxy names in its headers.
func (f *frontProxy) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil, false, nil
	}
	certificate := r.TLS.PeerCertificates[0]
	key := verifiedKey{
		certificate: sha256.Sum256(certificate.Raw),
		authorities: sha256.Sum256(f.config.CAContentProvider.CurrentCABundleContent()),
		names:       strings.Join(f.config.AllowedClientNames.Value(), "\n"),
	}
	if _, ok := f.verified.Get(key); ok {
		return f.reading.AuthenticateRequest(r)
	}
	response, ok, err := f.verifying.AuthenticateRequest(r)
	if err != nil {
		return nil, false, nil //nolint:nilerr // not the front proxy: the authenticators of other certificates come next
	}
	if ok {
		if ttl := min(frontProxyTTL, certificate.NotAfter.Sub(f.now())); ttl > 0 {
			f.verified.Add(key, nil, ttl)
		}
	}
	return response, ok, nil
}
