package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
)

// ErrNoTransport is returned by Call without a transport.
var ErrNoTransport = errors.New("no connection to other replicas is configured")

// Call is this replica's own request to another one.
type Call struct {
	Method string
	// Path begins with the element that the other replica's Server.Handle was called with.
	Path  string
	Query url.Values
	// Body is JSON; nil for none.
	Body io.Reader
	// Read reads the body of a successful response; nil ignores it.
	Read func(io.Reader) error
}

// Do sends the request, and fails unless the response has a 2xx status.
func (c Call) Do(ctx context.Context, transport http.RoundTripper, to membership.Member) error {
	if transport == nil {
		return ErrNoTransport
	}
	u := url.URL{Scheme: "https", Host: to.Address, Path: c.Path, RawQuery: c.Query.Encode()}
	r, err := http.NewRequestWithContext(ctx, c.Method, u.String(), c.Body)
	if err != nil {
		return fmt.Errorf("call replica %s: %w", to.Name, err)
	}
	if c.Body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	response, err := transport.RoundTrip(r)
	if err != nil {
		return fmt.Errorf("call replica %s: %w", to.Name, err)
	}
	defer response.Body.Close()
	if response.StatusCode/100 != 2 {
		return fmt.Errorf("call replica %s: %s %s: %s", to.Name, c.Method, c.Path, response.Status)
	}
	if c.Read == nil {
		return nil
	}
	if err := c.Read(response.Body); err != nil {
		return fmt.Errorf("read the response of replica %s: %w", to.Name, err)
	}
	return nil
}

// Retry sends the request every interval until it succeeds or ignore returns true for its error. It returns the last error
// if ctx is canceled. The request has no body.
func (c Call) Retry(ctx context.Context, transport http.RoundTripper, to membership.Member, interval time.Duration, ignore func(error) bool) error {
	retry := time.NewTicker(interval)
	defer retry.Stop()
	for {
		err := c.Do(ctx, transport, to)
		if err == nil || ignore(err) {
			return nil
		}
		select {
		case <-retry.C:
		case <-ctx.Done():
			return err
		}
	}
}
