package noloss

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	// answerTimeout is the timeout of a request, including the wait for a backend while a node is drained. It is less than the timeout of a Revision.
	answerTimeout = 4 * time.Minute
	// clients is the number of clients with many requests, pause the minimum pause between two of them.
	clients = 6
	pause   = 20 * time.Millisecond
	// delay is the time that the application needs for a request.
	delay = 50 * time.Millisecond
	// chunks is the number of chunks in the response of a long request, every the time between two: the request lasts longer
	// than the termination of a Pod that does not drain.
	chunks, every = 40, 200 * time.Millisecond
	// someAnswers is the number of responses that shows that the load runs.
	someAnswers = 20
	// suspended is the body of a response by a gateway that was too slow to confirm its membership: it rejects requests to Services with a
	// concurrency limit until it has, because another gateway may own them. Pods are not the cause.
	suspended = "the gateway has no connection to the others"
)

// errSuspended is the error of a request that a suspended gateway rejected.
var errSuspended = errors.New(suspended)

// load sends requests, one after the other by each client. None may fail.
type load struct {
	stage *stage
	stop  context.CancelFunc
	group sync.WaitGroup
	// longs is the number of long requests.
	longs int

	mu sync.Mutex
	// answers counts the responses by body, failures describes failed requests.
	answers  map[string]int // guarded by mu
	failures []string       // guarded by mu
	slowest  time.Duration  // guarded by mu
}

// startLoad sends requests by some clients until end is called, each over its own connection, and returns when they are
// answered.
func (s *stage) startLoad(t *testing.T, clients int) *load {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	l := &load{stage: s, stop: stop, answers: map[string]int{}}
	t.Cleanup(stop)
	for range clients {
		l.group.Go(func() {
			client := s.HTTPClient(answerTimeout)
			defer client.CloseIdleConnections()
			l.send(ctx, client)
		})
	}
	l.awaitMore(t)
	return l
}

func (l *load) send(ctx context.Context, client *http.Client) {
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for ctx.Err() == nil {
		// Requests in flight may finish.
		l.ask(context.WithoutCancel(ctx), client, "/?sleep="+delay.String(), func() {})
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

// ask sends a request to a path, and records its outcome. begun is called when the response starts.
func (l *load) ask(ctx context.Context, client *http.Client, path string, begun func()) {
	started := time.Now()
	body, err := get(ctx, client, "http://"+l.stage.host+path, begun)
	for errors.Is(err, errSuspended) && time.Since(started) < patience {
		<-time.After(pause)
		body, err = get(ctx, client, "http://"+l.stage.host+path, begun)
	}
	took := time.Since(started)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.slowest = max(l.slowest, took)
	if err != nil {
		l.failures = append(l.failures, fmt.Sprintf("%s: %s after %s: %v", time.Now().Format(time.TimeOnly), path, took, err))
		return
	}
	l.answers[body]++
}

// get returns the body of a response, for long ones only its last line.
func get(ctx context.Context, client *http.Client, target string, begun func()) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target, http.NoBody)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	begun()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return "", err
	}
	if response.StatusCode == http.StatusServiceUnavailable && strings.Contains(string(body), suspended) {
		return "", errSuspended
	}
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %.200q", response.Status, body)
	}
	lines := strings.Split(strings.TrimSpace(string(body)), "\n")
	return lines[len(lines)-1], nil
}

// long starts that many long requests, each at its own backend. end waits for them.
func (l *load) long(t *testing.T, count int) {
	t.Helper()
	path := fmt.Sprintf("/stream?n=%d&every=%s", chunks, every)
	begun := make(chan struct{}, count)
	for range count {
		l.group.Go(func() {
			client := l.stage.HTTPClient(answerTimeout)
			defer client.CloseIdleConnections()
			l.ask(context.WithoutCancel(t.Context()), client, path, func() { begun <- struct{}{} })
		})
	}
	timeout := time.After(patience)
	for range count {
		select {
		case <-begun:
		case <-timeout:
			t.Fatalf("not all long requests have begun after %s", patience)
		}
	}
	l.longs += count
}

// answered counts the responses with a body, or all for an empty one.
func (l *load) answered(body string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	sum := 0
	for of, count := range l.answers {
		if body == "" || of == body {
			sum += count
		}
	}
	return sum
}

// awaitMore waits for some more responses.
func (l *load) awaitMore(t *testing.T) {
	t.Helper()
	before := l.answered("")
	eventually(t, "requests are answered", func(context.Context) error {
		if more := l.answered("") - before; more < someAnswers {
			return fmt.Errorf("got %d responses", more)
		}
		return nil
	})
}

// end waits for requests in flight, and fails the test if any request failed.
func (l *load) end(t *testing.T) {
	t.Helper()
	l.stop()
	l.group.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	t.Logf("answers: %v, the slowest after %s", l.answers, l.slowest)
	// None was truncated or lacked its end.
	if last := fmt.Sprintf("chunk %d", chunks-1); l.answers[last] != l.longs {
		t.Errorf("%d of %d long requests have ended as expected", l.answers[last], l.longs)
	}
	if failed := len(l.failures); failed > 0 {
		t.Errorf("%d requests failed, such as:\n%s", failed, strings.Join(l.failures[:min(failed, 10)], "\n"))
	}
}
