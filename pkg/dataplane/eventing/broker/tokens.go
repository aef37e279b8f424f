package broker

import (
	"context"
	"errors"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/delivery"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/tokens"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// Tokens obtains tokens. See tokens.Tokens.
type Tokens interface {
	Get(ctx context.Context, key tokens.Key) (string, error)
	Rejected(key tokens.Key, token string) bool
}

var (
	errNoTokens = errors.New("the server cannot obtain tokens")
	// errTokenRejected is the error of an attempt whose token was valid before: another one is requested.
	errTokenRejected = errors.New("the recipient rejected the token of the ServiceAccount")
)

// tokenKey returns the key of the token of a consumer for an endpoint.
func tokenKey(config *eventing.Consumer, to eventing.Endpoint) tokens.Key {
	return tokens.Key{Namespace: config.Key.Namespace, Account: config.Account, Audience: to.Audience}
}

// token returns the token of a consumer for an endpoint, which is empty if the endpoint has no audience.
func (c *consumer) token(ctx context.Context, config *eventing.Consumer, to eventing.Endpoint) (string, error) {
	switch {
	case to.Audience == "":
		return "", nil
	case c.stream.broker.options.Tokens == nil || config.Account.Name == "":
		return "", errNoTokens
	}
	return c.stream.broker.options.Tokens.Get(ctx, tokenKey(config, to))
}

// unauthenticated returns the outcome of a delivery that waits for a token. The delivery is retried as often as necessary, and no attempt is counted.
func (c *consumer) unauthenticated(ctx context.Context, err error) delivery.Outcome {
	if ctx.Err() != nil {
		return delivery.Outcome{Event: delivery.Aborted}
	}
	c.health.observe(err, false)
	wait := time.Second
	if unavailable := (*tokens.UnavailableError)(nil); errors.As(err, &unavailable) {
		wait = max(unavailable.RetryAfter, time.Millisecond)
	}
	return delivery.Outcome{Event: delivery.Failed, Skipped: true, Backoff: wait, RetryAfter: wait}
}
