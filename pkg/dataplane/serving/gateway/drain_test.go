package gateway

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/pool"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// TestAwaitDrained covers when awaitDrained returns.
func TestAwaitDrained(t *testing.T) {
	draining := func() []workload.Instance {
		instances := ready("a")
		instances[0].Draining = true
		return instances
	}
	for _, test := range []struct {
		name string
		// act is called after a second, with a request in flight if busy is set.
		busy  bool
		known bool
		act   func(g *Gateway, r *pool.Request)
		want  time.Duration
	}{
		{name: "unknown", want: settleTime},
		{name: "drains", known: true, want: time.Second, act: func(g *Gateway, _ *pool.Request) { g.SetInstances(key("r"), draining()) }},
		{name: "removed", known: true, want: time.Second, act: func(g *Gateway, _ *pool.Request) { g.SetInstances(key("r"), nil) }},
		{name: "removed before its Revision", known: true, busy: true, want: 2 * time.Second, act: func(g *Gateway, r *pool.Request) {
			g.SetInstances(key("r"), nil)
			g.DeleteRevision(key("r"))
			<-time.After(time.Second)
			r.End(time.Now())
		}},
		{name: "drains with a request", known: true, busy: true, want: 2 * time.Second, act: func(g *Gateway, r *pool.Request) {
			g.SetInstances(key("r"), draining())
			<-time.After(time.Second)
			r.End(time.Now())
		}},
		{name: "a request that ends is not enough", known: true, busy: true, want: 5 * time.Second, act: func(_ *Gateway, r *pool.Request) {
			r.End(time.Now())
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := New(Options{})
				g.SetRevision(revision(1))
				if test.known {
					g.SetInstances(key("r"), ready("a"))
				}
				r := poolOf(g).Request()
				if test.busy {
					r.Begin()
					r.Acquire(patient{})
				}
				if test.act != nil {
					go func() {
						<-time.After(time.Second)
						test.act(g, &r)
					}()
				}
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				began := time.Now()
				err := g.awaitDrained(ctx, key("r"), "a")
				if took := time.Since(began); took != test.want {
					t.Errorf("done after %v, want %v", took, test.want)
				}
				if timedOut := test.want == 5*time.Second; (err != nil) != timedOut {
					t.Errorf("awaitDrained: %v", err)
				}
			})
		})
	}
}

// TestStreamsDoNotHoldInstance checks that ordinary requests delay the end of a draining backend, that open WebSockets and event
// streams do not, and that these continue.
func TestStreamsDoNotHoldInstance(t *testing.T) {
	proceed, finish, asked := make(chan bool), make(chan bool), make(chan bool, 1)
	upgrade := upgrading(func(conn net.Conn, from io.Reader) { echo(conn, from) })
	app := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Upgrade") != "":
			upgrade.ServeHTTP(w, r)
		case r.Header.Get("Events") != "":
			w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
			fmt.Fprint(w, "data: 1\n\n")
			w.(http.Flusher).Flush()
			<-proceed
			fmt.Fprint(w, "data: 2\n\n")
		default:
			asked <- true
			<-finish
		}
	})
	drained := make(chan string, 1)
	onPaths(t, Options{Drained: func(_ routing.Key, instance string) { drained <- instance }}, app, func(t *testing.T, b *bench, send func() *http.Request) {
		spec := specOf(b.Gateway)
		if spec.Protocol != routing.H2C {
			conn, reader := b.upgrade(t)
			defer func() {
				fmt.Fprintln(conn, "still there")
				if line, err := reader.ReadString('\n'); line != "still there\n" {
					t.Errorf("the upgraded connection returns %q, %v", line, err)
				}
			}()
		}
		r := send()
		r.Header.Set("Events", "1")
		events, err := b.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer events.Body.Close()
		ordinary := make(chan int)
		go func() {
			res, err := b.client.Do(send())
			if err != nil {
				ordinary <- 0
				return
			}
			res.Body.Close()
			ordinary <- res.StatusCode
		}()
		<-asked
		instances := []workload.Instance{{Name: "i-1", Address: b.app, Draining: true}}
		b.SetInstances(spec.Key, instances)
		select {
		case <-drained:
			t.Error("drained with an ordinary request in flight")
		default:
		}
		finish <- true
		if status := <-ordinary; status != http.StatusOK {
			t.Errorf("the ordinary request got %d", status)
		}
		if instance := <-drained; instance != "i-1" {
			t.Errorf("%s has drained", instance)
		}
		proceed <- true
		if body, err := io.ReadAll(events.Body); err != nil || !strings.HasSuffix(string(body), "data: 2\n\n") {
			t.Errorf("the event stream is %q, %v", body, err)
		}
	})
}

// TestAwaitDrainedByAll checks that the wait includes the requests of all replicas.
func TestAwaitDrainedByAll(t *testing.T) {
	began, proceed := make(chan bool), make(chan bool)
	app := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		began <- true
		<-proceed
	})
	names := []string{"a", "b"}
	instances := []workload.Instance{{Name: "i", Address: listen(t, app)}}
	spec := revision(0)
	all := serveReplicas(t, spec, instances, nil, names, names...)
	for _, name := range names {
		r := all[name]
		request := r.request(t, http.MethodGet, nil)
		go func() {
			if res, err := r.client.Do(request); err == nil {
				res.Body.Close()
			}
		}()
		<-began
	}
	answered := make(chan error)
	go func() { answered <- all["a"].AwaitDrainedByAll(t.Context(), key("r"), "i") }()
	instances[0].Draining = true
	for _, name := range names {
		select {
		case err := <-answered:
			t.Fatalf("answered while a request is in flight: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
		all[name].SetInstances(spec.Key, instances)
		proceed <- true
	}
	if err := <-answered; err != nil {
		t.Error(err)
	}
}

// TestServePublic checks that cluster-local hosts cannot be reached from outside.
func TestServePublic(t *testing.T) {
	app := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	b := serve(t, Options{Listeners: 2}, revision(0), app)
	route := routeTo("app", "app", routing.Target{Revision: key("r"), Percent: 100})
	local := route.Hosts[0]
	local.Name, local.ClusterLocal = "app.default.svc.cluster.local", true
	route.Hosts = append(route.Hosts, local)
	b.SetRoute(route)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	served := make(chan error, 1)
	go func() { served <- b.ServePublic(ctx, listener) }()
	inside, outside := b.address, listener.Addr().String()
	for _, test := range []struct {
		address, host string
		want          int
	}{
		{inside, "app", 200},
		{inside, local.Name, 200},
		{outside, "app", 200},
		{outside, local.Name, 404},
		{outside, "APP.default.svc.cluster.local.:80", 404},
	} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			b.address = test.address
			r := b.request(t, method, nil)
			if method == http.MethodPost {
				r = b.request(t, method, streamed("x"))
			}
			r.Host = test.host
			if res, _ := b.do(t, r); res.StatusCode != test.want {
				t.Errorf("%s %s at %s: %s, want %d", method, test.host, test.address, res.Status, test.want)
			}
		}
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// TestRetire checks that connections are closed after their next response, on all paths.
func TestRetire(t *testing.T) {
	app := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		drain(r.Body)
		fmt.Fprint(w, "ok")
	})
	onPaths(t, Options{}, app, func(t *testing.T, b *bench, send func() *http.Request) {
		conns := map[string]bool{}
		for i := range 4 {
			if i == 2 {
				b.Retire()
			}
			if _, body := b.do(t, observed(send(), conns)); body != "ok" {
				t.Errorf("%q", body)
			}
			// The first request after Retire still uses the existing connection.
			if want := []int{1, 1, 1, 2}[i]; len(conns) != want {
				t.Errorf("%d connections after request %d, want %d", len(conns), i, want)
			}
		}
	})
}
