// Package eventtail shows the events of Brokers live, whichever replica owns them.
package eventtail

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/filter"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/tail"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/eventing/broker"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/ownership"
)

// Element begins the paths by which replicas request tails of each other. Handler serves them.
const Element = "tails"

// maxMessage bounds the text of an error of another replica, in bytes.
const maxMessage = 4 << 10

// pacing has the delays of a request to an owner that has not learned of its ownership yet, or does not answer. following has the delays
// after the owner of an open tail has stopped, until the other replicas know of it.
var (
	pacing    = ownership.Pacing{Patience: 5 * time.Second, FirstPause: 50 * time.Millisecond, LastPause: time.Second}
	following = ownership.Pacing{Patience: time.Minute, FirstPause: 50 * time.Millisecond, LastPause: time.Second}
)

// Tails opens tails of Brokers.
type Tails struct {
	// Hub has the tails of the Brokers whose events this replica accepts.
	Hub *tail.Hub
	// Exists reports whether a Broker exists, regardless of its owner.
	Exists func(eventing.Key) bool
	// Owners are the owners of all Brokers, which Transport reaches. Partitions returns the number of partitions of a Broker, which may
	// have different owners. All are nil if this is the only replica.
	Owners     *ownership.Table[eventing.Key]
	Partitions func(eventing.Key) int
	Transport  http.RoundTripper
}

// Tail returns the events that a Broker accepts from now on as lines of JSON. The stream ends with ctx, or with the Broker. If the owner
// changes, it continues with a line about that. See broker.Tails.
func (t *Tails) Tail(ctx context.Context, of eventing.Key, options *eventingv1.BrokerTailOptions) (io.ReadCloser, error) {
	if !t.Exists(of) {
		return nil, fmt.Errorf("%w: it is not ready", broker.ErrTailUnavailable)
	}
	ctx, cancel := context.WithCancel(ctx)
	source, err := t.open(ctx, pacing, of, options)
	if err != nil {
		cancel()
		return nil, err
	}
	r, w := io.Pipe()
	go func() {
		defer cancel()
		err := note(w, "startedAt", time.Now().UTC().Format(time.RFC3339Nano))
		if err == nil {
			err = t.follow(ctx, of, options, source, w)
		} else {
			cancel()
			end(ctx, source)
		}
		w.CloseWithError(err)
	}()
	return &stream{PipeReader: r, cancel: cancel}, nil
}

// stream ends its writer when it is closed.
type stream struct {
	*io.PipeReader
	cancel context.CancelFunc
}

// Close implements io.Closer.
func (s *stream) Close() error {
	s.cancel()
	return s.PipeReader.Close()
}

// source copies whole lines to w until it ends.
type source func(ctx context.Context, w io.Writer) error

// follow copies the lines of a source, and of those that follow it while the Broker exists.
func (t *Tails) follow(ctx context.Context, of eventing.Key, options *eventingv1.BrokerTailOptions, from source, w io.Writer) error {
	for {
		if err := from(ctx, w); err != nil || ctx.Err() != nil {
			return err
		}
		if !t.Exists(of) {
			return note(w, "end", "the Broker does not exist anymore")
		}
		next, err := t.open(ctx, following, of, options)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the client has ended the tail
		case err != nil && !t.Exists(of):
			return note(w, "end", "the Broker does not exist anymore")
		case err != nil:
			return note(w, "end", err.Error())
		}
		if err := note(w, "gap", "the owner of the Broker has changed; events may be missing"); err != nil {
			// A failed write means that the client has ended the tail, and so canceled ctx.
			end(ctx, next)
			return err
		}
		from = next
	}
}

// note writes a line with a text.
func note(w io.Writer, name, text string) error {
	line, err := json.Marshal(map[string]string{name: text})
	if err == nil {
		_, err = w.Write(append(line, '\n'))
	}
	if err != nil {
		return fmt.Errorf("write line of a tail: %w", err)
	}
	return nil
}

// open returns the tail of the owners of a Broker. It waits for a moment for an owner that does not know of its ownership yet.
func (t *Tails) open(ctx context.Context, pacing ownership.Pacing, of eventing.Key, options *eventingv1.BrokerTailOptions) (source, error) {
	if t.Owners == nil {
		return t.own(of, options) //nolint:contextcheck,nolintlint // a tail ends by its source
	}
	attempts := ownership.Attempts{Pacing: pacing}
	for {
		changed := t.Owners.Changed()
		opened, err := t.openAll(ctx, of, options)
		if !errors.Is(err, broker.ErrTailUnavailable) || attempts.Wait(ctx, changed) != nil {
			return opened, err
		}
	}
}

// openAll returns the tails of all replicas that own a partition of a Broker, as one that ends with the first of them.
func (t *Tails) openAll(ctx context.Context, of eventing.Key, options *eventingv1.BrokerTailOptions) (source, error) {
	owners := t.Owners.Current()
	sources := map[string]source{}
	ctx, cancel := context.WithCancel(ctx)
	for n := range max(1, t.Partitions(of)) {
		owner, self := owners.Owner(of.Part(n))
		if sources[owner.Name] != nil {
			continue
		}
		var opened source
		var err error
		if self {
			opened, err = t.own(of, options) //nolint:contextcheck,nolintlint // a tail ends by its source
		} else {
			opened, err = t.remote(ctx, owner, of, options)
		}
		if err != nil {
			cancel()
			end(ctx, slices.Collect(maps.Values(sources))...)
			return nil, err
		}
		sources[owner.Name] = opened
	}
	return func(outer context.Context, w io.Writer) error {
		defer cancel()
		stop := context.AfterFunc(outer, cancel)
		defer stop()
		var copying errgroup.Group
		for _, from := range sources {
			copying.Go(func() error {
				defer cancel()
				return from(ctx, w)
			})
		}
		return copying.Wait()
	}, nil
}

// end ends sources that are not used, whose context was canceled.
func end(ctx context.Context, sources ...source) {
	for _, from := range sources {
		// It copies nothing.
		_ = from(ctx, io.Discard)
	}
}

// serves reports whether this replica owns a partition of a Broker.
func (t *Tails) serves(of eventing.Key) bool {
	if t.Owners == nil {
		return true
	}
	owners := t.Owners.Current()
	for n := range max(1, t.Partitions(of)) {
		if owners.Owns(of.Part(n)) {
			return true
		}
	}
	return false
}

// own returns a tail of a Broker of this replica.
func (t *Tails) own(of eventing.Key, options *eventingv1.BrokerTailOptions) (source, error) {
	opened, err := t.openOwn(of, options)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, w io.Writer) error {
		defer opened.Close()
		return opened.Copy(ctx, w, func() error { return nil })
	}, nil
}

func (t *Tails) openOwn(of eventing.Key, options *eventingv1.BrokerTailOptions) (*tail.Tail, error) {
	o := tail.Options{Data: options.Data}
	if options.Filter != "" {
		compiled, err := filter.Compile(nil, []eventing.Filter{{CESQL: options.Filter}})
		if err != nil {
			return nil, fmt.Errorf("parameter 'filter' is invalid: %w", err)
		}
		o.Filter = compiled
	}
	opened, err := t.Hub.Open(of, o)
	switch {
	case errors.Is(err, tail.ErrStopped):
		return nil, fmt.Errorf("%w: %w", broker.ErrTailUnavailable, err)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", broker.ErrTooManyTails, err)
	}
	return opened, nil
}

// remote returns a tail of a Broker that another replica owns.
func (t *Tails) remote(ctx context.Context, owner membership.Member, of eventing.Key, options *eventingv1.BrokerTailOptions) (source, error) {
	query := url.Values{"filter": {options.Filter}}
	if options.Data {
		query.Set("data", "true")
	}
	u := url.URL{Scheme: "https", Host: owner.Address, Path: "/" + Element + "/" + of.Namespace + "/" + of.Name, RawQuery: query.Encode()}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("request tail of replica %s: %w", owner.Name, err)
	}
	response, err := t.Transport.RoundTrip(r) //nolint:bodyclose // the source closes it
	if err != nil {
		return nil, fmt.Errorf("%w: replica %s does not answer: %w", broker.ErrTailUnavailable, owner.Name, err)
	}
	if response.StatusCode == http.StatusOK {
		return func(_ context.Context, w io.Writer) error {
			defer response.Body.Close()
			return copyLines(w, response.Body)
		}, nil
	}
	defer response.Body.Close()
	message, _ := io.ReadAll(io.LimitReader(response.Body, maxMessage))
	text := strings.TrimSpace(string(message))
	switch response.StatusCode {
	case http.StatusTooManyRequests:
		return nil, fmt.Errorf("%w: %s", broker.ErrTooManyTails, text)
	case http.StatusBadRequest:
		return nil, errors.New(text)
	}
	return nil, fmt.Errorf("%w: replica %s answers %s", broker.ErrTailUnavailable, owner.Name, response.Status)
}

// copyLines copies whole lines. The end of the source, for any reason, is no error.
func copyLines(w io.Writer, from io.Reader) error {
	lines := bufio.NewReaderSize(from, 64<<10)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return nil //nolint:nilerr // see above
		}
		if _, err := w.Write(line); err != nil {
			return fmt.Errorf("write line of a tail: %w", err)
		}
	}
}

// Handler returns the handler of requests by other replicas, below Element: /<namespace>/<name>.
func (t *Tails) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		namespace, name, found := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		of := eventing.Key{Kind: eventing.Broker, Namespace: namespace, Name: name}
		if !found || !t.serves(of) || !t.Exists(of) {
			http.Error(w, "this replica does not own the Broker", http.StatusMisdirectedRequest)
			return
		}
		query := r.URL.Query()
		opened, err := t.openOwn(of, &eventingv1.BrokerTailOptions{Filter: query.Get("filter"), Data: query.Get("data") == "true"}) //nolint:contextcheck,nolintlint // a tail ends by its source
		switch {
		case errors.Is(err, broker.ErrTooManyTails):
			http.Error(w, err.Error(), http.StatusTooManyRequests)
			return
		case errors.Is(err, broker.ErrTailUnavailable):
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		case err != nil:
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		defer opened.Close()
		w.Header().Set("Content-Type", "application/x-ndjson")
		w.WriteHeader(http.StatusOK)
		flush := http.NewResponseController(w).Flush
		if flush() == nil {
			// The other replica finds out about errors.
			_ = opened.Copy(r.Context(), w, flush)
		}
	})
}
