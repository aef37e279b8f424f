// Package sender makes one attempt to deliver an event over HTTP, and classifies the answer.
package sender

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"go.opentelemetry.io/otel/trace"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// DefaultTimeout bounds an attempt if the delivery options set no timeout.
const DefaultTimeout = 30 * time.Second

// MaxErrorBody is the number of bytes that are kept of the body of an error.
const MaxErrorBody = 1024

const (
	// defaultMaxReply is room for an event of 1 MiB and its attributes in structured mode.
	defaultMaxReply  = 1<<20 + 1<<16
	defaultUserAgent = "knative-apiserver"
	// maxTargets bounds the number of cached URLs.
	maxTargets = 4096
)

// Options configure a Sender. All have defaults.
type Options struct {
	// TracerProvider makes a span for each attempt. Nil makes none. Traced reports whether spans are exported; nil means that they are.
	TracerProvider trace.TracerProvider
	Traced         func() bool
	// UserAgent is the User-Agent of the requests.
	UserAgent string
	// MaxReply bounds the body of an answer that may be a reply, in bytes.
	MaxReply int64
	// Dial makes connections to the hosts of URLs. localhost and names below it are replaced by the address of this machine
	// before.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Discloses reports whether the users of a namespace may see the responses of a host; nil discloses nothing.
	Discloses Disclosure
	// Budget bounds the bytes of replies that are being read, by the namespace of the consumer. Nil means no bound.
	Budget *flow.Budget
	// Clock is used for latencies and for Retry-After.
	Clock clock.PassiveClock
}

// Sender sends events. It is safe for concurrent use.
type Sender struct {
	// targets caches a *url.URL for each recent address.
	targets    *lru.Cache
	transports *transports
	tracer     trace.Tracer
	traces     func() bool
	userAgent  string
	maxReply   int64
	discloses  Disclosure
	budget     *flow.Budget
	clock      clock.PassiveClock
}

// New returns a sender.
func New(o Options) *Sender {
	s := &Sender{targets: lru.New(maxTargets), transports: newTransports(o.Dial), userAgent: o.UserAgent, maxReply: o.MaxReply, discloses: o.Discloses, budget: o.Budget, clock: o.Clock, traces: o.Traced}
	if o.TracerProvider != nil {
		s.tracer = o.TracerProvider.Tracer("github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender")
	}
	if s.userAgent == "" {
		s.userAgent = defaultUserAgent
	}
	if s.maxReply == 0 {
		s.maxReply = defaultMaxReply
	}
	if s.clock == nil {
		s.clock = clock.RealClock{}
	}
	return s
}

// Trust makes further attempts trust certificates in PEM, besides the certificates of the system and of the endpoint.
func (s *Sender) Trust(certificates []byte) error { return s.transports.trust(certificates) }

// Close closes idle connections. In-flight attempts continue.
func (s *Sender) Close() { s.transports.close() }

// Attempt configures one attempt.
type Attempt struct {
	// Timeout bounds the attempt, the answer's body included; 0 means DefaultTimeout.
	Timeout time.Duration
	// Format is the format of the event; empty stands for the one in which it arrived.
	Format eventing.Format
	// ExpectReply asks for replies and reads them (eventing Derived (Reply) Events).
	ExpectReply bool
	// Namespace is sent to the recipient in a header, unless empty.
	Namespace string
	// Consumer is the consumer of the event. It names the span.
	Consumer eventing.Key
	// Token authenticates the consumer to the recipient; empty sends none. It replaces a user name and password in the URL.
	Token string
}

// Result is the outcome of an attempt.
type Result struct {
	// Code is the HTTP status of the answer, 0 without an answer.
	Code int
	// Err is nil if the event is delivered. Its text is fit for eventing.Health.LastError: it has no credentials.
	Err error
	// Retryable is true if another attempt may succeed.
	Retryable bool
	// RetryAfter is the delay that the recipient requests, or nil.
	RetryAfter *time.Duration
	// Reply is the event in the answer, or nil.
	Reply *event.Event
	// ReplyErr is the reason why the body of an answer is not a reply, nil if it is a reply or empty. The event is delivered. Its
	// text is like the text of Err.
	ReplyErr error
	// Body is the beginning of the body of an error, at most MaxErrorBody bytes; nil if it is not disclosed
	// to the consumer.
	Body []byte
	// Latency is the duration of the attempt.
	Latency time.Duration
}

// Send sends an event to an endpoint once. Redirects are not followed. It sends the event again only if the recipient closed
// an idle connection at the same moment and so did not read it (RFC 9112 9.3.1).
func (s *Sender) Send(ctx context.Context, e *event.Event, to eventing.Endpoint, o Attempt) Result {
	start := s.clock.Now()
	if o.Timeout <= 0 {
		o.Timeout = DefaultTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	ctx, span := s.startSpan(ctx, e, o.Consumer)
	result := s.send(ctx, cancel, e, to, o)
	result.Latency = s.clock.Since(start)
	endSpan(span, result)
	return result
}

// send is Send within the time and the span of the attempt.
func (s *Sender) send(ctx context.Context, cancel context.CancelFunc, e *event.Event, to eventing.Endpoint, o Attempt) Result {
	target, err := s.target(to.URL)
	if err != nil {
		// Another attempt may get a valid address.
		return Result{Err: err, Retryable: true}
	}
	transport, err := s.transports.of(target, to.CACerts)
	if err != nil {
		return Result{Err: failed(target, err), Retryable: true}
	}
	req, err := s.request(ctx, e, target, o)
	if err != nil {
		return Result{Err: failed(target, err)}
	}
	res, err := transport.RoundTrip(req)
	if err != nil {
		err = withoutQuotes(err)
		if interim := (*interimError)(nil); errors.As(err, &interim) && ctx.Err() == nil {
			// The recipient sent an interim status as its final one.
			return Result{Code: interim.code, Err: failed(target, status(interim.code))}
		}
		return unanswered(ctx, target, o.Timeout, err)
	}
	res.Body = quiet{res.Body}
	defer res.Body.Close()
	a := answer{Response: res, target: target, cancel: cancel, timeout: o.Timeout, now: s.clock.Now, maxReply: s.maxReply, budget: s.budget, namespace: o.Consumer.Namespace}
	return withoutToken(s.disclose(ctx, a.judge(ctx, o.ExpectReply), target, o.Consumer.Namespace), target, o.Token)
}

// request returns the request that holds an event (eventing HTTP Verbs, eventing Minimum supported protocol).
func (s *Sender) request(ctx context.Context, e *event.Event, target *url.URL, o Attempt) (*http.Request, error) {
	header := make(http.Header, len(e.Attributes)+len(e.Headers)+5)
	e.WriteHeaders(header)
	structured := e.Structured
	if o.Format != "" {
		structured = o.Format == eventing.FormatJSON
	}
	var body []byte
	if structured {
		var err error
		if body, err = e.MarshalStructured(); err != nil {
			return nil, fmt.Errorf("the event cannot be written as JSON: %w", err)
		}
		header["Content-Type"] = []string{"application/cloudevents+json"}
	} else {
		body = e.WriteBinary(header)
	}
	header["User-Agent"] = []string{s.userAgent}
	if o.ExpectReply {
		header["Prefer"] = []string{"reply"}
	}
	if o.Namespace != "" {
		header["Kn-Namespace"] = []string{o.Namespace}
	}
	if trace.SpanContextFromContext(ctx).IsValid() {
		injectSpan(ctx, header)
	}
	req := &http.Request{Method: http.MethodPost, URL: target, Host: target.Host, Header: header,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, ContentLength: int64(len(body)), Body: http.NoBody}
	if len(body) > 0 {
		// Repeating the request on another connection requires the whole body.
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
		req.Body, _ = req.GetBody()
	}
	if o.Token != "" {
		header["Authorization"] = []string{"Bearer " + o.Token}
	} else if user := target.User; user != nil {
		password, _ := user.Password()
		req.SetBasicAuth(user.Username(), password)
	}
	return req.WithContext(ctx), nil
}

// target returns the URL of an endpoint, which many events are sent to.
func (s *Sender) target(address string) (*url.URL, error) {
	if known, ok := s.targets.Get(address); ok {
		return known.(*url.URL), nil
	}
	target, err := parse(address)
	if err == nil {
		s.targets.Add(address, target)
	}
	return target, err
}

// parse returns the URL of an endpoint.
func parse(address string) (*url.URL, error) {
	target, err := url.Parse(address)
	if err != nil {
		// The error of url.Parse contains the address, which may contain a password.
		return nil, errors.New("POST: the address is not a URL")
	}
	if target.Scheme != "http" && target.Scheme != "https" || target.Host == "" {
		return nil, fmt.Errorf("POST %s: the address must be an absolute URL of the scheme http or https", label(target))
	}
	return target, nil
}

// label returns a URL without its possibly secret parts: credentials and the query.
func label(target *url.URL) string {
	path := target.EscapedPath()
	if path == "" {
		path = "/"
	}
	return target.Scheme + "://" + target.Host + path
}
