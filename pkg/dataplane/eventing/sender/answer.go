package sender

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
)

const (
	// drained is the number of bytes of an unneeded body that are read so that its connection can be reused.
	drained = 64 << 10
	// drainTime bounds the time for that. A delivery with a known outcome does not wait for slow bodies.
	drainTime = time.Second
	// replyWeight is the number of times that a reply is in memory while it is read and parsed.
	replyWeight = 2
	// memoryDelay is the delay before the next attempt if a reply cannot be read for lack of memory.
	memoryDelay = time.Second
	// trusted is the number of announced bytes of a body for which memory is allocated in advance.
	trusted = 64 << 10
)

// answer is an HTTP response to an event.
type answer struct {
	*http.Response
	target   *url.URL
	cancel   context.CancelFunc
	timeout  time.Duration
	now      func() time.Time
	maxReply int64
	// budget bounds the replies that are being read for a namespace. Nil means no bound.
	budget    *flow.Budget
	namespace string
}

// judge classifies the answer (eventing Event Acknowledgement and Delivery Retry, eventing Derived (Reply)
// Events). Only the body of a 200 can be a reply, and only if one is expected.
func (a *answer) judge(ctx context.Context, expectReply bool) Result {
	switch {
	case a.StatusCode == http.StatusOK && expectReply:
		return a.reply(ctx)
	case a.StatusCode/100 == 2:
		a.drain()
		return Result{Code: a.StatusCode}
	}
	result := Result{Code: a.StatusCode, Err: failed(a.target, status(a.StatusCode)), Retryable: retried(a.StatusCode)}
	if a.StatusCode == http.StatusTooManyRequests || a.StatusCode == http.StatusServiceUnavailable {
		result.RetryAfter = retryAfter(a.Header.Get("Retry-After"), a.now())
	}
	if a.StatusCode != http.StatusSwitchingProtocols {
		result.Body = a.beginning()
	}
	return result
}

// retried reports whether the event is retried after an error status (eventing Event Acknowledgement and Delivery Retry). 408 is
// not an answer to the event, but to its slow arrival.
func retried(code int) bool {
	switch code {
	case http.StatusNotFound, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests:
		return true
	}
	return code/100 == 5
}

// reply reads the event in an answer. If the body is not an event, or too large, the event is delivered without a
// reply: the recipient accepted it (eventing Event Acknowledgement and Delivery Retry).
func (a *answer) reply(ctx context.Context) Result {
	bytes, ok := a.reserve()
	if !ok {
		delay := memoryDelay
		return Result{Err: failed(a.target, fmt.Errorf("%w, but %w", status(a.StatusCode), errMemory)), Retryable: true, RetryAfter: &delay}
	}
	defer a.release(bytes)
	body, err := a.read()
	switch {
	case errors.Is(err, errTooLarge):
		return Result{Code: a.StatusCode, ReplyErr: failed(a.target, fmt.Errorf("%w: %w of %d bytes", status(a.StatusCode), err, a.maxReply))}
	case err != nil:
		// The end of the body decides about the delivery.
		return unanswered(ctx, a.target, a.timeout, fmt.Errorf("%w, but the body of the answer ended early: %w", status(a.StatusCode), err))
	}
	if len(body) == 0 && a.Header.Get("Ce-Specversion") == "" {
		return Result{Code: a.StatusCode}
	}
	reply, err := event.FromResponse(a.Header, body) //nolint:contextcheck,nolintlint // it waits for nothing; whether the linter sees that depends on its cache
	if err != nil {
		return Result{Code: a.StatusCode, ReplyErr: failed(a.target, fmt.Errorf("%w, but the answer %w", status(a.StatusCode), err))}
	}
	return Result{Code: a.StatusCode, Reply: reply}
}

var (
	errTooLarge = errors.New("the answer exceeds the limit")
	errMemory   = errors.New("the namespace holds too much memory to read the answer")
)

// reserve reserves memory for reading a reply, which grows the buffer to twice its size if the size is unknown. It reports whether
// memory is available.
func (a *answer) reserve() (bytes int64, ok bool) {
	if bytes = min(a.ContentLength, a.maxReply); a.ContentLength < 0 {
		bytes = a.maxReply
	}
	if bytes *= replyWeight; a.budget == nil || bytes == 0 {
		return 0, true
	}
	return bytes, a.budget.Reserve(a.namespace, bytes)
}

// release releases reserved memory.
func (a *answer) release(bytes int64) {
	if bytes > 0 {
		a.budget.Release(a.namespace, bytes)
	}
}

// read returns the whole body, or errTooLarge.
func (a *answer) read() ([]byte, error) {
	switch {
	case a.ContentLength > a.maxReply:
		return nil, errTooLarge
	case a.ContentLength >= 0 && a.ContentLength <= trusted:
		body := make([]byte, a.ContentLength)
		_, err := io.ReadFull(a.Body, body)
		return body, err
	}
	body, err := io.ReadAll(io.LimitReader(a.Body, a.maxReply+1))
	if err == nil && int64(len(body)) > a.maxReply {
		err = errTooLarge
	}
	return body, err
}

// beginning returns the beginning of the body as far as it arrives in time, and drains the rest.
func (a *answer) beginning() []byte {
	if a.ContentLength == 0 {
		return nil
	}
	defer time.AfterFunc(drainTime, a.cancel).Stop()
	// The part that arrived is reported.
	body, _ := io.ReadAll(io.LimitReader(a.Body, MaxErrorBody))
	a.discard()
	return body
}

// drain reads the rest of a body so that its connection can be reused, unless the rest is large or slow.
func (a *answer) drain() {
	if a.ContentLength != 0 {
		defer time.AfterFunc(drainTime, a.cancel).Stop()
		a.discard()
	}
}

func (a *answer) discard() {
	io.CopyN(io.Discard, a.Body, drained) //nolint:errcheck // without the end of the body the connection is closed
}

// retryAfter returns the delay that a Retry-After header asks for, in seconds or until a date (RFC 9110, 10.2.3), or
// nil. A date in the past asks for none.
func retryAfter(value string, now time.Time) *time.Duration {
	value = strings.TrimSpace(value)
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		delay := time.Duration(seconds) * time.Second
		return &delay
	}
	date, err := http.ParseTime(value)
	if err != nil {
		return nil
	}
	delay := max(date.Sub(now), 0)
	return &delay
}

// status is an HTTP status as an error.
type status int

// Error returns code and text, such as "503 Service Unavailable".
func (s status) Error() string {
	return strings.TrimSpace(strconv.Itoa(int(s)) + " " + http.StatusText(int(s)))
}

// failed returns an error that names the request. Its text holds no secrets as long as err's does not.
func failed(target *url.URL, err error) error {
	return fmt.Errorf("POST %s: %w", label(target), err)
}

// unanswered returns the result of an attempt that got no answer, or only a part of one.
func unanswered(ctx context.Context, target *url.URL, timeout time.Duration, err error) Result {
	// A connection may report the end of the timeout before the context does.
	end, limited := ctx.Deadline()
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded), ctx.Err() == nil && limited && !time.Now().Before(end):
		err = fmt.Errorf("no answer within %v: %w", timeout, context.DeadlineExceeded)
	case ctx.Err() != nil:
		err = ctx.Err()
	}
	return Result{Err: failed(target, err), Retryable: true}
}
