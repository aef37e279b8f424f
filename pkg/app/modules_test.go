package app

import (
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"k8s.io/component-base/metrics"

	"github.com/knative-apiserver/knative-apiserver/pkg/apiserver"
	"github.com/knative-apiserver/knative-apiserver/pkg/app/lifecycle"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
	"github.com/knative-apiserver/knative-apiserver/pkg/host"
	testport "github.com/knative-apiserver/knative-apiserver/test/port"
)

// served sends the server once the API is served.
type served chan *apiserver.Server

// Start implements apiserver.Components.
func (s served) Start(_ context.Context, server *apiserver.Server) error {
	s <- server
	return nil
}

// Ready implements apiserver.Components.
func (s served) Ready() error { return nil }

// serveAPI runs an API server with an embedded etcd until the test ends.
func serveAPI(t *testing.T) (*apiserver.StandaloneOptions, *apiserver.Server) {
	t.Helper()
	options := apiserver.NewStandaloneOptions()
	options.DataDir, options.SecurePort = t.TempDir(), 0
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	servers, stopped := make(served, 1), make(chan error, 1)
	go func() {
		stopped <- options.RunServer(ctx, io.Discard, apiserver.Dependencies{Components: servers}, nil)
	}()
	t.Cleanup(func() {
		stop()
		if err := <-stopped; err != nil {
			t.Errorf("the API server returns %v", err)
		}
	})
	select {
	case server := <-servers:
		return options, server
	case err := <-stopped:
		stopped <- err
		t.Fatalf("the API server ended: %v", err)
		return nil, nil
	}
}

func listenLocal(t *testing.T) net.Listener {
	t.Helper()
	return testport.Listen(t)
}

// get returns the status code of a GET request to a listener, or an error if it does not listen.
func get(t *testing.T, listener net.Listener) (int, error) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+listener.Addr().String()+"/default/none", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	response.Body.Close()
	return response.StatusCode, nil
}

// Each module of a standalone server starts, becomes ready once the modules before it work, and stops.
func TestStandaloneModules(t *testing.T) {
	api, server := serveAPI(t)
	config := server.ControllersConfig()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := newStandalone(ctx, StandaloneConfig{
		API: api, ClusterDomain: "cluster.local", AccessLog: filepath.Join(api.DataDir, "access.log"), Gateway: listenLocal(t),
		Eventing: &EventingConfig{Listener: listenLocal(t), Log: eventlog.Options{Replicas: 1}, MaxEventBytes: 1 << 20},
	}, metrics.NewKubeRegistry(), func() {})
	core, err := newCoreKinds(config)
	if err != nil {
		t.Fatal(err)
	}
	recorder, stopRecorder, err := host.NewRecorder(ctx, config, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer stopRecorder()
	clients, err := newClients(config, server.Stored(), recorder)
	if err != nil {
		t.Fatal(err)
	}
	all, err := s.newModules(ctx, &apiserver.Server{}, clients, core)
	if err != nil {
		t.Fatal(err)
	}
	modules := slices.Concat(all.stages()...)
	var names []string
	for _, m := range modules {
		names = append(names, m.Name())
	}
	want := []string{"namespaces", "settings", "informers", "processes", "serving", "gateway", "services", "streams", "consumers", "broker", "garbage"}
	if !slices.Equal(names, want) {
		t.Errorf("modules are %q, want %q", names, want)
	}

	// The informers start last.
	interrupted, interrupt := context.WithCancel(ctx)
	interrupt()
	for _, m := range modules {
		if m == lifecycle.Module(all.informers) {
			continue
		}
		if err := m.Start(ctx, func(err error) { t.Errorf("%s failed: %v", m.Name(), err) }); err != nil {
			t.Fatalf("%s does not start: %v", m.Name(), err)
		}
		unready := slices.Contains([]string{"serving", "streams", "consumers"}, m.Name())
		if err := m.Ready(interrupted); (err != nil) != unready {
			t.Errorf("%s without informers: Ready returns %v", m.Name(), err)
		}
	}
	if err := all.informers.Start(ctx, func(err error) { t.Errorf("informers failed: %v", err) }); err != nil {
		t.Fatal(err)
	}
	limited, cancelLimited := context.WithTimeout(ctx, 5*time.Minute)
	defer cancelLimited()
	for _, m := range modules {
		if err := m.Ready(limited); err != nil {
			t.Errorf("%s with informers: Ready returns %v", m.Name(), err)
		}
	}
	for name, listener := range map[string]net.Listener{"gateway": s.Gateway, "broker": s.Eventing.Listener} {
		if code, err := get(t, listener); err != nil || code < 400 || code >= 500 {
			t.Errorf("%s responds with %d, error %v", name, code, err)
		}
	}

	for _, m := range slices.Backward(modules) {
		if err := m.Stop(limited); err != nil {
			t.Errorf("%s does not stop: %v", m.Name(), err)
		}
	}
	for name, listener := range map[string]net.Listener{"gateway": s.Gateway, "broker": s.Eventing.Listener} {
		if code, err := get(t, listener); err == nil {
			t.Errorf("%s responds with %d after its stop", name, code)
		}
	}
	// The event log is closed: another one opens its directory.
	log, err := eventlog.Open(t.Context(), eventlog.Options{Dir: EventLogDir(api.DataDir), Replicas: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := log.Close(); err != nil {
		t.Error(err)
	}
}
