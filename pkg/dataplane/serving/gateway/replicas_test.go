package gateway

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/ownership"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// replica is one of several gateways with its own view of the membership.
type replica struct {
	*bench
	name string
	view *membership.View
	peer *httptest.Server
}

// plaintext sends requests to other replicas without TLS.
type plaintext struct{ *http.Transport }

func (p plaintext) RoundTrip(r *http.Request) (*http.Response, error) {
	out := r.WithContext(r.Context())
	u := *r.URL
	u.Scheme = "http"
	out.URL = &u
	return p.Transport.RoundTrip(out)
}

// serveReplicas starts gateways with the same Revision and backends. Only the names in live are members at first.
func serveReplicas(t *testing.T, spec *routing.Revision, instances []workload.Instance, log io.Writer, names []string, live ...string) map[string]*replica {
	t.Helper()
	all := map[string]*replica{}
	handlers := map[string]*atomic.Pointer[http.Handler]{}
	for _, name := range names {
		handler := new(atomic.Pointer[http.Handler])
		peer := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			(*handler.Load()).ServeHTTP(w, r)
		}))
		peer.Config.Protocols = new(http.Protocols)
		peer.Config.Protocols.SetUnencryptedHTTP2(true)
		handlers[name] = handler
		all[name] = &replica{name: name, peer: peer}
		peer.Start()
	}
	for _, r := range all {
		transport := &http.Transport{Protocols: new(http.Protocols), DisableCompression: true}
		transport.Protocols.SetUnencryptedHTTP2(true)
		r.view = membership.NewView(setOf(all, r.name, live...))
		r.bench = serve(t, Options{Members: r.view, Forward: plaintext{transport}, AccessLog: log}, spec, nil)
		peers := http.StripPrefix(peerPath, r.PeerHandler())
		handlers[r.name].Store(&peers)
		r.SetInstances(spec.Key, instances)
		t.Cleanup(func() {
			transport.CloseIdleConnections()
			r.peer.CloseClientConnections()
			r.peer.Close()
		})
	}
	return all
}

func setOf(all map[string]*replica, self string, live ...string) *membership.Set {
	var set []membership.Member
	for _, name := range live {
		set = append(set, membership.Member{Name: name, Address: all[name].peer.Listener.Addr().String()})
	}
	return membership.NewSet(self, set...)
}

// ownerAndOther returns the owner of the tests' Revision among some replicas, and one of the others.
func ownerAndOther(names ...string) (owner, other string) {
	var set []membership.Member
	for _, name := range names {
		set = append(set, membership.Member{Name: name})
	}
	first, _ := ownership.Among(membership.NewSet("", set...), ownerKey).Owner(key("r"))
	owner = first.Name
	for _, name := range names {
		if name != owner {
			other = name
		}
	}
	return owner, other
}

// gauge is an application that counts its requests.
type gauge struct {
	now, most, all atomic.Int64
	// hold is the duration of a request.
	hold time.Duration
}

func (a *gauge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := a.now.Add(1)
	defer a.now.Add(-1)
	a.all.Add(1)
	for most := a.most.Load(); n > most && !a.most.CompareAndSwap(most, n); most = a.most.Load() {
	}
	drain(r.Body)
	select {
	case <-time.After(a.hold):
	case <-r.Context().Done():
	}
	fmt.Fprint(w, "ok")
}

// TestBurstAtOtherReplica checks that all requests of a burst wait for one backend with containerConcurrency 1 if they reach a gateway
// that does not own the Revision (serving 8-7).
func TestBurstAtOtherReplica(t *testing.T) {
	names := []string{"a", "b"}
	_, other := ownerAndOther(names...)
	app := &gauge{}
	instances := []workload.Instance{{Name: "i", Address: listen(t, app)}}
	all := serveReplicas(t, revision(1), instances, nil, names, names...)
	r := all[other]
	request := r.request(t, http.MethodGet, nil)
	var clients sync.WaitGroup
	for range 300 {
		clients.Go(func() {
			res, err := r.client.Do(request.Clone(t.Context()))
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close()
			if res.StatusCode != http.StatusOK {
				t.Errorf("a request of a burst got %s", res.Status)
			}
		})
	}
	clients.Wait()
	if most := app.most.Load(); most != 1 {
		t.Errorf("the backend had %d requests at a time, want 1", most)
	}
}

// awaitOwners makes requests wait for an unreachable owner for long, until the test ends.
func awaitOwners(t *testing.T) {
	t.Helper()
	before := ownerPacing
	t.Cleanup(func() { ownerPacing = before })
	ownerPacing.Patience = time.Minute
}

// TestLimitAcrossReplicas checks that no backend has more concurrent requests than containerConcurrency while requests reach all
// gateways and the owner of the Revision changes repeatedly (serving 8-7).
func TestLimitAcrossReplicas(t *testing.T) {
	const limit = 3
	awaitOwners(t)
	names := []string{"a", "b", "c"}
	apps := []*gauge{{hold: 15 * time.Millisecond}, {hold: 15 * time.Millisecond}}
	var instances []workload.Instance
	for i, app := range apps {
		instances = append(instances, workload.Instance{Name: fmt.Sprint("i-", i), Address: listen(t, app)})
	}
	spec := revision(limit)
	all := serveReplicas(t, spec, instances, nil, names, names...)
	var clients sync.WaitGroup
	var stopped atomic.Bool
	defer clients.Wait()
	defer stopped.Store(true)
	for i := range 18 {
		r := all[names[i%3]]
		clients.Go(func() {
			for n := 0; !stopped.Load(); n++ {
				var body io.Reader
				if n%2 == 0 {
					body = streamed("x")
				}
				res, err := r.client.Do(r.request(t, http.MethodPost, body))
				if err != nil {
					t.Error(err)
					return
				}
				drain(res.Body)
				res.Body.Close()
				if res.StatusCode != http.StatusOK {
					t.Errorf("%s by %s", res.Status, res.Header)
				}
			}
		})
	}
	owner, other := ownerAndOther(names...)
	for _, live := range [][]string{{"a", "b", "c"}, without(names, owner), names, {owner}, {other}, names} {
		// The replicas observe the change one after the other.
		for _, name := range names {
			all[name].view.Set(setOf(all, name, live...))
			<-time.After(10 * time.Millisecond)
		}
		<-time.After(250 * time.Millisecond)
	}
	for i, app := range apps {
		eventually(t, fmt.Sprintf("backend %d got %d requests at a time, and 20 in all", i, limit), func() bool {
			return app.most.Load() >= limit && app.all.Load() >= 20
		})
	}
	stopped.Store(true)
	clients.Wait()
	for i, app := range apps {
		if app.most.Load() > limit {
			t.Errorf("backend %d had %d concurrent requests, want at most %d", i, app.most.Load(), limit)
		}
	}
	for _, name := range names {
		// Clients get their responses shortly before the gateways end the requests.
		eventually(t, "none is in flight at "+name, func() bool { return len(inFlight(all[name].Gateway)) == 0 })
	}
}

func without(names []string, name string) (rest []string) {
	for _, n := range names {
		if n != name {
			rest = append(rest, n)
		}
	}
	return rest
}

// TestOwnershipMoves checks that a new owner waits for the in-flight requests of the previous one, which forwards its waiting
// requests.
func TestOwnershipMoves(t *testing.T) {
	began, proceed := make(chan bool, 2), make(chan bool)
	app := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began <- true
		<-proceed
		fmt.Fprint(w, r.Header.Get("X-Forwarded-For"))
	})
	owner, other := ownerAndOther("a", "b")
	spec := revision(1)
	all := serveReplicas(t, spec, []workload.Instance{{Name: "i", Address: listen(t, app)}}, nil, []string{"a", "b"}, "a", "b")
	first, second := all[owner], all[other]
	answers := make(chan string, 2)
	get := func() {
		_, body := first.do(t, first.request(t, http.MethodGet, nil))
		answers <- body
	}
	go get()
	<-began
	go get()
	for waiting(first.Gateway) == 0 {
		<-time.After(time.Millisecond)
	}
	second.view.Set(setOf(all, other, other))
	if answer := peerCall(usagePath, nil, nothing).Do(t.Context(), second.options.Forward, membership.Member{Address: first.peer.Listener.Addr().String()}); answer != nil {
		t.Fatal(answer)
	}
	first.view.Set(setOf(all, owner, other))
	for waiting(second.Gateway) == 0 {
		<-time.After(time.Millisecond)
	}
	select {
	case <-began:
		t.Fatal("the backend got a second request")
	case <-time.After(200 * time.Millisecond):
	}
	proceed <- true
	<-began
	proceed <- true
	for range 2 {
		if body := <-answers; body != "127.0.0.1" {
			t.Errorf("the backend got X-Forwarded-For %q", body)
		}
	}
}

func nothing(io.Reader) error { return nil }

// inFlight returns the requests that a gateway has in flight by backend.
func inFlight(g *Gateway) map[string]int {
	requests, _ := poolOf(g).InFlight()
	return requests
}

// TestOwnerUnreachable checks that no backend gets requests while the owner is unreachable.
func TestOwnerUnreachable(t *testing.T) {
	app := &gauge{}
	owner, other := ownerAndOther("a", "b")
	all := serveReplicas(t, revision(1), []workload.Instance{{Name: "i", Address: listen(t, app)}}, nil, []string{"a", "b"}, "a", "b")
	all[owner].peer.CloseClientConnections()
	all[owner].peer.Close()
	r := all[other]
	res, err := r.client.Do(r.request(t, http.MethodGet, nil))
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" {
		t.Errorf("%s, Retry-After %q", res.Status, res.Header.Get("Retry-After"))
	}
	if app.all.Load() > 0 {
		t.Error("the backend got a request from a replica that does not own the Revision")
	}
}

// TestOwnerReplaced checks that a request continues as soon as another replica is the owner instead of one that is unreachable.
func TestOwnerReplaced(t *testing.T) {
	awaitOwners(t)
	app := &gauge{}
	owner, other := ownerAndOther("a", "b")
	all := serveReplicas(t, revision(1), []workload.Instance{{Name: "i", Address: listen(t, app)}}, nil, []string{"a", "b"}, "a", "b")
	all[owner].peer.CloseClientConnections()
	all[owner].peer.Close()
	r := all[other]
	timer := time.AfterFunc(100*time.Millisecond, func() { r.view.Set(setOf(all, other, other)) })
	defer timer.Stop()
	if res, body := r.do(t, r.request(t, http.MethodGet, nil)); body != "ok" {
		t.Errorf("%s %q after the change of the owner", res.Status, body)
	}
}

// TestRelay covers the parts of a request and its response that are preserved when another replica forwards them.
func TestRelay(t *testing.T) {
	app := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name := range r.Header {
			if strings.HasPrefix(name, relayPrefix) {
				t.Errorf("the backend gets %s", name)
			}
		}
		control := http.NewResponseController(w)
		switch {
		case r.Header.Get("Upgrade") != "":
			conn, buffered, err := control.Hijack()
			if err != nil {
				return
			}
			defer conn.Close()
			fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-A: 1\r\n\r\n")
			echo(conn, buffered)
		case r.URL.Path == "/trailers":
			w.Header().Set("Trailer", "Grpc-Status")
			w.WriteHeader(http.StatusOK)
			if err := errors.Join(control.EnableFullDuplex(), control.Flush()); err != nil {
				return
			}
			lines := bufio.NewScanner(r.Body)
			for lines.Scan() {
				fmt.Fprintln(w, lines.Text())
				if err := control.Flush(); err != nil {
					return
				}
			}
			w.Header().Set("Grpc-Status", r.Trailer.Get("X-Sum"))
		default:
			w.Header().Set("X-Host", r.Host)
			fmt.Fprint(w, r.Method, " ", r.RequestURI, " ", r.Header.Get("X-Forwarded-For"), " ", r.Header.Get("X-Forwarded-Host"))
		}
	})
	owner, other := ownerAndOther("a", "b")
	for _, protocol := range []routing.Protocol{routing.HTTP1, routing.H2C} {
		t.Run(string(protocol), func(t *testing.T) {
			var log lockedBuffer
			spec := revision(2)
			spec.Protocol = protocol
			all := serveReplicas(t, spec, []workload.Instance{{Name: "i", Address: listen(t, app)}}, &log, []string{"a", "b"}, "a", "b")
			r := all[other]
			in := r.request(t, http.MethodGet, nil)
			in.URL.Path, in.URL.RawPath = "//x///..", "//x/%2F/.."
			in.Header.Set(revisionHeader, "other/r")
			in.Header.Set(methodHeader, "DELETE")
			if res, body := r.do(t, in); body != "GET //x/%2F/..?a=1;b 127.0.0.1 app" {
				t.Errorf("%s %q", res.Status, body)
			}
			if res, body := r.do(t, r.request(t, http.MethodHead, nil)); res.StatusCode != http.StatusOK || body != "" {
				t.Errorf("HEAD: %s %q", res.Status, body)
			}

			read, write := io.Pipe()
			in = r.request(t, http.MethodPost, read)
			in.URL.Path = "/trailers"
			in.Trailer = http.Header{"X-Sum": nil}
			res, err := r.client.Do(in)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			lines := bufio.NewScanner(res.Body)
			fmt.Fprintln(write, "one")
			if !lines.Scan() || lines.Text() != "one" {
				t.Errorf("%q comes back, %v", lines.Text(), lines.Err())
			}
			in.Trailer.Set("X-Sum", "7")
			write.Close()
			if lines.Scan() || res.Trailer.Get("Grpc-Status") != "7" {
				t.Errorf("trailer %v after %q", res.Trailer, lines.Text())
			}

			conn, err := net.Dial("tcp", r.address)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: app\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			reader := bufio.NewReader(conn)
			upgraded, err := http.ReadResponse(reader, nil) //nolint:bodyclose // it has none
			if err != nil || upgraded.StatusCode != http.StatusSwitchingProtocols || upgraded.Header.Get("X-A") != "1" || upgraded.Header.Get(tunnelHeader) != "" {
				t.Fatalf("%v, %v", upgraded, err)
			}
			fmt.Fprintln(conn, "hello")
			if line, err := reader.ReadString('\n'); line != "hello\n" {
				t.Errorf("%q, %v comes back", line, err)
			}
			// The place of an earlier request is free soon after its response.
			eventually(t, "only the upgraded request is in flight", func() bool { return inFlight(all[owner].Gateway)["i"] == 1 })
			conn.Close()
			for inFlight(all[owner].Gateway)["i"] > 0 {
				<-time.After(time.Millisecond)
			}
			// The line of the upgraded connection is written after its place is free.
			eventually(t, "all requests are in the access log", func() bool { return strings.Count(log.String(), "\n") >= 4 })
			for _, r := range all {
				if err := r.stop(); err != nil {
					t.Error(err)
				}
			}
			if got := strings.Count(log.String(), "\n"); got != 4 || strings.Count(log.String(), `"instance":"i"`) != 4 {
				t.Errorf("%d lines in the access log, want 4 with the instance: %s", got, log.String())
			}
		})
	}
}

// lockedBuffer is a buffer for concurrent writers.
type lockedBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}

// TestRelayTimeoutAndCancel covers timeouts and cancellation of forwarded requests.
func TestRelayTimeoutAndCancel(t *testing.T) {
	began, gone := make(chan bool, 2), make(chan bool, 2)
	app := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		drain(r.Body)
		began <- true
		<-r.Context().Done()
		gone <- true
	})
	owner, other := ownerAndOther("a", "b")
	spec := revision(1)
	spec.Timeout = 2 * time.Second // the application must get the request before
	all := serveReplicas(t, spec, []workload.Instance{{Name: "i", Address: listen(t, app)}}, nil, []string{"a", "b"}, "a", "b")
	r := all[other]
	retried(t, func() bool {
		if res, body := r.do(t, r.request(t, http.MethodGet, nil)); res.StatusCode != http.StatusGatewayTimeout || !strings.Contains(body, "request timeout") {
			t.Errorf("%s %q", res.Status, body)
		}
		select {
		case <-began:
			<-gone
			return true
		case <-time.After(5 * time.Second):
			return false
		}
	})
	patient := *spec
	patient.Timeout = time.Minute
	for _, replica := range all {
		replica.SetRevision(&patient)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { <-began; cancel() }()
	if res, err := r.client.Do(r.request(t, http.MethodGet, nil).WithContext(ctx)); err == nil {
		res.Body.Close()
		t.Error("an answer came")
	}
	<-gone
	for inFlight(all[owner].Gateway)["i"] > 0 {
		<-time.After(time.Millisecond)
	}
}
