// Package eventing tests the built server from `kubectl apply` of Brokers and Channels to delivered events, also when the
// server, the disk, the network or subscribers fail.
package eventing

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
	"github.com/knative-apiserver/knative-apiserver/test/port"
)

// shared is the server of all tests that do not start their own; each test uses its own namespace.
var shared *server

func TestMain(m *testing.M) {
	harness.DetectMutations()
	harness.Main(m, func(dir string) (*harness.Standalone, error) { return harness.StartStandalone(dir) }, func(s *harness.Standalone) (err error) {
		shared, err = newServer(s)
		return err
	})
}

// server is a running server and its administrator's clients.
type server struct {
	*harness.Standalone
	*harness.Clients
	// dataDir and args are the data directory and flags of a server that a test started.
	dataDir string
	args    []string
}

func newServer(standalone *harness.Standalone) (*server, error) {
	clients, err := harness.ClientsOf(standalone.Kubeconfig)
	if err != nil {
		return nil, err
	}
	return &server{Standalone: standalone, Clients: clients}, nil
}

// start runs a server for one test, which restart starts restarted.
func start(t *testing.T, dataDir string, args ...string) *server {
	t.Helper()
	brokerPort, err := port.Stable()
	if err != nil {
		t.Fatal(err)
	}
	args = append([]string{"--broker-port", strconv.Itoa(brokerPort)}, args...)
	standalone, err := harness.StartStandalone(dataDir, args...)
	if err != nil {
		t.Fatal(err)
	}
	s, err := newServer(standalone)
	if err != nil {
		standalone.Kill()
		t.Fatal(err)
	}
	s.dataDir, s.args = dataDir, args
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
		if log := s.Log(); t.Failed() {
			t.Logf("the end of the server's output:\n%s", log[max(0, len(log)-8192):])
		}
	})
	return s
}

// restart starts a server that exited, with the same data and broker port.
func (s *server) restart() error {
	standalone, err := harness.StartStandalone(s.dataDir, s.args...)
	if err != nil {
		return err
	}
	restarted, err := newServer(standalone)
	if err != nil {
		standalone.Kill()
		return err
	}
	s.Standalone, s.Clients = restarted.Standalone, restarted.Clients
	return nil
}

var namespaces atomic.Int64

// namespace returns a namespace that no other test uses.
func namespace() string { return fmt.Sprintf("test-%d", namespaces.Add(1)) }

// bounded returns a context for a wait.
func bounded(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	t.Cleanup(cancel)
	return ctx
}

// sender posts events.
var sender = &http.Client{
	Timeout:   harness.Patience,
	Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true},
}

// event is an event that a test posts in binary mode.
type event struct {
	id, kind string
	// extensions are additional attributes.
	extensions map[string]string
	// data is "{}" if empty.
	data string
}

// answer is the response to an event.
type answer struct {
	code   int
	header http.Header
	body   string
}

// post sends an event to the address of a Broker or Channel.
func post(ctx context.Context, address string, e event) (*answer, error) {
	if e.data == "" {
		e.data = "{}"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, strings.NewReader(e.data))
	if err != nil {
		return nil, err
	}
	attributes := map[string]string{"specversion": "1.0", "id": e.id, "type": e.kind, "source": "/test"}
	for name, value := range e.extensions {
		attributes[name] = value
	}
	for name, value := range attributes {
		request.Header.Set("Ce-"+name, value)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := sender.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, fmt.Errorf("reading the answer: %w", err)
	}
	return &answer{code: response.StatusCode, header: response.Header, body: string(body)}, nil
}

// mustPost is post for events that must be accepted.
func mustPost(t testing.TB, address string, events ...event) {
	t.Helper()
	for _, e := range events {
		a, err := post(t.Context(), address, e)
		if err != nil {
			t.Fatal(err)
		}
		if a.code != http.StatusAccepted {
			t.Fatalf("POST %s: %d %s", address, a.code, a.body)
		}
	}
}

// numbered returns events of one type with the ids PREFIX-0, PREFIX-1, ...
func numbered(prefix, kind string, count int) []event {
	events := make([]event, count)
	for i := range events {
		events[i] = event{id: fmt.Sprintf("%s-%d", prefix, i), kind: kind}
	}
	return events
}

// ids returns the IDs of events.
func ids(events []event) []string {
	all := make([]string, len(events))
	for i := range events {
		all[i] = events[i].id
	}
	return all
}
