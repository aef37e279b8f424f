package operator

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// The rates are low enough for two processors besides everything else: they reveal gaps, not limits. An event is synced by three
// replicas, on one disk here.
const (
	requestClients, requestEvery = 4, 80 * time.Millisecond
	eventClients, eventEvery     = 2, 250 * time.Millisecond
)

// load sends requests to the stage's Service, events to its Broker and, optionally, calls of the API.
type load struct {
	stage            *stage
	requests, events activity
	// api is nil without calls of the API.
	api *apiLoad

	stopping chan struct{}
	running  sync.WaitGroup

	mu sync.Mutex
	// accepted are the IDs of the acknowledged events with their times.
	accepted map[string]time.Time // guarded by mu
}

// startLoad starts a load that stop ends. Attempts may fail.
func startLoad(t *testing.T, s *stage, withAPI bool) *load {
	t.Helper()
	return startLoadWithin(t, s, withAPI, attemptLimit)
}

// startSteadyLoad is startLoad for tests in which no attempt may fail.
func startSteadyLoad(t *testing.T, s *stage, withAPI bool) *load {
	t.Helper()
	return startLoadWithin(t, s, withAPI, steadyLimit)
}

// startLoadWithin is startLoad with a timeout for each attempt.
func startLoadWithin(t *testing.T, s *stage, withAPI bool, limit time.Duration) *load {
	t.Helper()
	l := &load{
		stage: s, requests: activity{name: "requests", limit: limit}, events: activity{name: "events", limit: limit},
		stopping: make(chan struct{}), accepted: map[string]time.Time{},
	}
	// Separate clients, so that a broken connection affects one client only.
	for range requestClients {
		client := node.HTTPClient(limit)
		l.running.Go(func() {
			l.requests.run(t.Context(), l.stopping, requestEvery, func(ctx context.Context, _ int) error { return l.request(ctx, client) })
		})
	}
	for range eventClients {
		client, prefix := &http.Client{Transport: &http.Transport{}}, rand.Text()
		l.running.Go(func() {
			l.events.run(t.Context(), l.stopping, eventEvery, func(ctx context.Context, number int) error {
				return l.send(ctx, client, fmt.Sprintf("%s-%d", prefix, number))
			})
		})
	}
	if withAPI {
		l.api = startAPI(t, s, limit, l.stopping, &l.running)
	}
	eventually(t, patience, "the load runs", func(context.Context) error {
		if l.requests.succeeded() < 20 || l.events.succeeded() < 5 || (withAPI && l.api.writes.succeeded() < 2) {
			return fmt.Errorf("%d requests and %d events succeeded", l.requests.succeeded(), l.events.succeeded())
		}
		return nil
	})
	return l
}

// stop ends the load and verifies that each call succeeded, possibly after retries, and that no acknowledged event is lost.
func (l *load) stop(t *testing.T) {
	t.Helper()
	close(l.stopping)
	l.running.Wait()
	l.requests.report(t)
	l.events.report(t)
	if l.api != nil {
		l.api.verify(t)
	}
	l.awaitDelivered(t)
}

// awaitDelivered waits until all acknowledged events have been delivered.
func (l *load) awaitDelivered(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	accepted := maps.Clone(l.accepted)
	l.mu.Unlock()
	// An event that has waited for long is retried about once a minute.
	eventually(t, recovery, "all acknowledged events are delivered", func(context.Context) error {
		received, err := l.stage.received()
		if err != nil {
			return err
		}
		missing := 0
		for id := range accepted {
			if _, there := received[id]; !there {
				missing++
			}
		}
		if missing > 0 {
			return fmt.Errorf("%d of %d are missing", missing, len(accepted))
		}
		return nil
	})
}

func (l *load) request(ctx context.Context, client *http.Client) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+l.stage.host+"/", http.NoBody)
	if err != nil {
		return err
	}
	body, err := do(client, request, http.StatusOK)
	if err == nil && !strings.HasPrefix(body, "Hello ") {
		err = fmt.Errorf("the answer is %.100q", body)
	}
	return err
}

// send sends an event, and records its acknowledgement.
func (l *load) send(ctx context.Context, client *http.Client, id string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, l.stage.ingress, strings.NewReader(`{"n": 1}`))
	if err != nil {
		return err
	}
	for name, value := range map[string]string{
		"Content-Type": "application/json", "Ce-Specversion": "1.0", "Ce-Id": id, "Ce-Type": "operator.test", "Ce-Source": "/operator",
	} {
		request.Header.Set(name, value)
	}
	if _, err := do(client, request, http.StatusAccepted); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.accepted[id] = time.Now()
	return nil
}

// do sends a request that must be answered with a status.
func do(client *http.Client, request *http.Request, status int) (string, error) {
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return "", err
	}
	if response.StatusCode != status {
		return "", fmt.Errorf("%s: %.200s", response.Status, body)
	}
	return string(body), nil
}
