package serving

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// wire is a raw connection to the gateway, without a connection pool and without retries.
type wire struct {
	net.Conn
	in *bufio.Reader
}

// dial connects to the gateway.
func (s *server) dial(ctx context.Context) (*wire, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", s.gateway)
	if err != nil {
		return nil, err
	}
	if err := conn.SetDeadline(time.Now().Add(harness.Patience)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &wire{Conn: conn, in: bufio.NewReader(conn)}, nil
}

// mustDial is dial for a connection that is closed when the test ends; it fails the test on errors.
func (s *server) mustDial(t testing.TB) *wire {
	t.Helper()
	w, err := s.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

// read reads the response to a request with a method.
func (w *wire) read(method string) (*answer, error) {
	response, err := http.ReadResponse(w.in, &http.Request{Method: method})
	if err != nil {
		return nil, fmt.Errorf("reading the answer: %w", err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	a := &answer{code: response.StatusCode, header: response.Header, body: string(body)}
	if err != nil {
		return a, fmt.Errorf("reading the answer's body: %w", err)
	}
	return a, nil
}

// exchange sends a request verbatim and reads the response.
func (w *wire) exchange(method, request string) (*answer, error) {
	if err := w.SetDeadline(time.Now().Add(harness.Patience)); err != nil {
		return nil, err
	}
	if _, err := io.WriteString(w, request); err != nil {
		return nil, fmt.Errorf("sending the request: %w", err)
	}
	return w.read(method)
}

// get returns the text of a GET request.
func get(host, path string) string {
	return "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n"
}

// h2 returns a client that speaks HTTP/2 to the gateway for every host.
func (s *server) h2(t testing.TB) *http.Client {
	t.Helper()
	transport := &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, s.gateway)
		},
		DisableCompression: true,
		Protocols:          new(http.Protocols),
	}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: harness.Patience}
}

// clients returns a client of each protocol: complete HTTP/1.1 requests use the fast path of the gateway, HTTP/2 the standard
// path.
func (s *server) clients(t testing.TB) map[string]*http.Client {
	t.Helper()
	return map[string]*http.Client{"HTTP/1.1": s.http, "h2c": s.h2(t)}
}

// untimed returns a client without a timeout, for requests that last until the test ends them.
func untimed(client *http.Client) *http.Client { return &http.Client{Transport: client.Transport} }

// ask sends a request and reads the response, which is partial if the connection broke.
func ask(ctx context.Context, client *http.Client, method, url string, body io.Reader) (*answer, error) {
	request, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	a := &answer{code: response.StatusCode, header: response.Header}
	var content bytes.Buffer
	_, err = content.ReadFrom(response.Body)
	a.body = content.String()
	return a, err
}

// mustAsk is ask for a request that must be answered.
func mustAsk(t testing.TB, client *http.Client, method, url string, body io.Reader) *answer {
	t.Helper()
	a, err := ask(t.Context(), client, method, url, body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	return a
}

// load is a number of clients that each send one request after the other.
type load struct {
	stop    context.CancelFunc
	running sync.WaitGroup
	// answered counts the requests with status 200, failed all others.
	answered, failed atomic.Int64

	mu       sync.Mutex
	failures []failure // guarded by mu; the first ones
}

// clientMaker creates a client of a load: the function with which it sends a request.
type clientMaker func(ctx context.Context) (send func() (*answer, error), err error)

// failure is a request without status 200.
type failure struct {
	began, ended time.Time
	// code is 0 without a response.
	code int
	err  error
}

func (f failure) String() string {
	return fmt.Sprintf("after %s: %d %v", f.ended.Sub(f.began), f.code, f.err)
}

// maxFailures bounds the recorded failures.
const maxFailures = 1000

// generate starts n clients, each of which pauses after every response, until end is called or the test ends.
func generate(t testing.TB, n int, pause time.Duration, client clientMaker) *load {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	l := &load{stop: stop}
	for range n {
		l.running.Go(func() { l.run(ctx, pause, client) })
	}
	t.Cleanup(l.end)
	return l
}

func (l *load) run(ctx context.Context, pause time.Duration, client clientMaker) {
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	var send func() (*answer, error)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		began := time.Now()
		var a *answer
		var err error
		if send == nil {
			send, err = client(ctx)
		}
		if err == nil {
			a, err = send()
		}
		if ctx.Err() != nil {
			return
		}
		if err == nil && a.code == http.StatusOK {
			l.answered.Add(1)
			continue
		}
		l.fail(began, a, err)
		if err != nil {
			// The connection is unusable.
			send = nil
		}
	}
}

func (l *load) fail(began time.Time, a *answer, err error) {
	l.failed.Add(1)
	f := failure{began: began, ended: time.Now(), err: err}
	if a != nil {
		f.code = a.code
		if err == nil {
			f.err = errors.New(a.body)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.failures) < maxFailures {
		l.failures = append(l.failures, f)
	}
}

// end stops the clients. It may be called several times.
func (l *load) end() {
	l.stop()
	l.running.Wait()
}

// mustNotFail ends the load and fails the test if requests failed or fewer than wanted were answered. It waits for those: a slow machine answers
// few while a fast server acts.
func (l *load) mustNotFail(t testing.TB, atLeast int64) {
	t.Helper()
	for end := time.Now().Add(harness.Patience); l.failed.Load() == 0 && l.answered.Load() < atLeast && time.Now().Before(end); {
		<-time.After(10 * time.Millisecond)
	}
	l.end()
	if l.failed.Load() > 0 {
		t.Errorf("%d of %d requests failed, such as: %v", l.failed.Load(), l.failed.Load()+l.answered.Load(), l.failures[0])
	}
	if l.answered.Load() < atLeast {
		t.Errorf("%d requests were answered, want at least %d for a meaningful test", l.answered.Load(), atLeast)
	}
}

// keepAlive creates clients that send GET requests on one HTTP/1.1 connection each.
func (s *site) keepAlive(path string) clientMaker {
	return func(ctx context.Context) (func() (*answer, error), error) {
		w, err := s.dial(ctx)
		if err != nil {
			return nil, err
		}
		context.AfterFunc(ctx, func() { w.Close() })
		return func() (*answer, error) {
			a, err := w.exchange(http.MethodGet, get(s.host, path))
			if err != nil {
				w.Close()
			}
			return a, err
		}, nil
	}
}

// streams creates clients that send GET requests as streams of one HTTP/2 connection.
func (s *site) streams(t testing.TB, path string) clientMaker {
	client := s.h2(t)
	return func(ctx context.Context) (func() (*answer, error), error) {
		return func() (*answer, error) { return ask(ctx, client, http.MethodGet, s.url+path, nil) }, nil
	}
}
