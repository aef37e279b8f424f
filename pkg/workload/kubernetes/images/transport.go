package images

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/egress"
)

const (
	// connectTimeout bounds the time to connect to a registry.
	connectTimeout = 3 * time.Second
	// maxManifest and maxConfig bound the manifest and the configuration of an image, maxOther all other responses, such as
	// tokens and errors, in bytes.
	maxManifest = 4 << 20
	maxConfig   = 4 << 20
	maxOther    = 64 << 10
	// maxResponseHeader bounds the header of a response, in bytes.
	maxResponseHeader = 64 << 10
	// maxValues bounds the values in a JSON document. A value of three bytes occupies more than a hundred when parsed.
	maxValues = 1 << 16
	// bodyWeight is the number of times that a body is in memory: while it grows, in the library, and parsed. valueBytes is the memory
	// of a parsed value. readStep is the size of the parts in which a body is read.
	bodyWeight, valueBytes, readStep = 4, 128, 64 << 10
	// maxRedirects bounds the redirects of a request.
	maxRedirects = 5
)

var (
	errTooLarge   = errors.New("the registry's response exceeds the limit")
	errOverBudget = errors.New("the namespace holds too much memory")
	errRedirects  = fmt.Errorf("the registry redirects more than %d times", maxRedirects)
	errRedirect   = errors.New("the registry redirects credentials to another host, or from https to http")
)

// registryTransport sends requests to registries that tenants name: to allowed addresses only, with bounded responses, and
// without credentials to the targets of redirects.
type registryTransport struct {
	guard *egress.Guard
	// direct connects through the guard, proxied through the proxy of the environment, which the operator chose.
	direct, proxied http.RoundTripper
	proxy           func(*http.Request) (proxied bool)
}

func newTransport(guard *egress.Guard) *registryTransport {
	direct := remote.DefaultTransport.(*http.Transport).Clone()
	direct.MaxResponseHeaderBytes = maxResponseHeader
	// Most registries receive a single request, so few idle connections are kept.
	direct.MaxIdleConns, direct.MaxIdleConnsPerHost, direct.IdleConnTimeout = 32, 2, 30*time.Second
	proxied := direct.Clone()
	direct.Proxy, direct.DialContext = nil, guard.Dialer(egress.ForRegistry, connectTimeout)
	return &registryTransport{guard: guard, direct: direct, proxied: proxied, proxy: func(r *http.Request) bool {
		to, err := http.ProxyFromEnvironment(r)
		return err == nil && to != nil
	}}
}

// RoundTrip implements http.RoundTripper.
func (t *registryTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r, err := redirected(r)
	if err != nil {
		return nil, err
	}
	next := t.direct
	if t.proxy(r) {
		if err := t.guard.CheckHost(egress.ForRegistry, r.URL.Hostname()); err != nil {
			return nil, err
		}
		next = t.proxied
	}
	res, err := next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	return res, nil
}

// responses is a transport for one image. It reads and bounds the responses, whose memory counts against the budget of the namespace
// until release.
type responses struct {
	*registryTransport
	budget    *flow.Budget
	namespace string

	// mu guards held, the number of bytes that are reserved.
	mu   sync.Mutex
	held int64
}

// RoundTrip implements http.RoundTripper.
func (r *responses) RoundTrip(request *http.Request) (*http.Response, error) {
	res, err := r.registryTransport.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if err := r.bound(res); err != nil {
		res.Body.Close()
		return nil, err
	}
	return res, nil
}

// hold reserves bytes until release.
func (r *responses) hold(bytes int64) error {
	if r.budget == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.budget.Reserve(r.namespace, bytes) {
		return errOverBudget
	}
	r.held += bytes
	return nil
}

// release releases all reserved bytes.
func (r *responses) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held > 0 {
		r.budget.Release(r.namespace, r.held)
		r.held = 0
	}
}

// read reads at most limit bytes of a body, and reserves memory for each step before it reads it.
func (r *responses) read(from io.Reader, limit int64) ([]byte, error) {
	var body bytes.Buffer
	for left := limit; left > 0; {
		step := min(left, readStep)
		if err := r.hold(bodyWeight * step); err != nil {
			return nil, err
		}
		n, err := io.CopyN(&body, from, step)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return body.Bytes(), err
		}
		left -= n
	}
	return body.Bytes(), nil
}

// redirected returns the request that follows a redirect. Content may be on another host, such as a mirror or a content
// delivery network, which gets no credentials.
func redirected(r *http.Request) (*http.Request, error) {
	redirects, first := 0, r
	for first.Response != nil && first.Response.Request != nil {
		redirects++
		first = first.Response.Request
	}
	switch {
	case redirects == 0:
		return r, nil
	case redirects > maxRedirects:
		return nil, errRedirects
	case first.URL.Scheme == "https" && r.URL.Scheme != "https":
		return nil, errRedirect
	case first.URL.Host == r.URL.Host:
		return r, nil
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		return nil, errRedirect
	}
	r = r.Clone(r.Context())
	r.Header.Del("Authorization")
	r.Header.Del("Cookie")
	return r, nil
}

// bound replaces the body of a response by its bytes, up to the limit. The content of an image must be complete and cheap
// to parse.
func (r *responses) bound(res *http.Response) error {
	if res.Request != nil && res.Request.Method == http.MethodHead {
		return nil
	}
	limit, content := limitOf(res)
	if content && res.ContentLength > limit {
		return errTooLarge
	}
	body, err := r.read(res.Body, limit+1)
	if err != nil && (content || errors.Is(err, errOverBudget)) {
		return err
	}
	if int64(len(body)) > limit {
		if content {
			return errTooLarge
		}
		body = body[:limit]
	}
	values := bytes.Count(body, []byte{','}) + bytes.Count(body, []byte{'{'}) + bytes.Count(body, []byte{'['})
	if values > maxValues {
		return errTooLarge
	}
	if err := r.hold(valueBytes * int64(values)); err != nil {
		return err
	}
	res.Body.Close()
	res.Body = io.NopCloser(bytes.NewReader(body))
	return nil
}

// limitOf returns the size limit for the body of a response, and reports whether it is content of an image.
func limitOf(res *http.Response) (limit int64, content bool) {
	first := res.Request
	for first != nil && first.Response != nil && first.Response.Request != nil {
		first = first.Response.Request
	}
	switch {
	case res.StatusCode != http.StatusOK || first == nil:
		return maxOther, false
	case strings.Contains(first.URL.Path, "/manifests/"):
		return maxManifest, true
	case strings.Contains(first.URL.Path, "/blobs/"):
		return maxConfig, true
	}
	return maxOther, true
}
