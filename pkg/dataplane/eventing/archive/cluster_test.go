package archive

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/nats-io/nats.go"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
	"github.com/knative-apiserver/knative-apiserver/test/natstest"
	"github.com/knative-apiserver/knative-apiserver/test/port"
)

// clusterOf returns the options of the event logs of three replicas.
func clusterOf(t *testing.T) (all []eventlog.Options) {
	t.Helper()
	ca, cert, key := natstest.Certificates(t)
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	authority, err := os.ReadFile(ca)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority)
	config := &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: pool, ClientCAs: pool,
		GetCertificate:       func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &pair, nil },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil },
	}
	var routes []string
	var ports []int
	for range 3 {
		p, err := port.Stable()
		if err != nil {
			t.Fatal(err)
		}
		ports, routes = append(ports, p), append(routes, net.JoinHostPort("127.0.0.1", strconv.Itoa(p)))
	}
	for i := range 3 {
		all = append(all, eventlog.Options{Dir: t.TempDir(), Replicas: 3, Logger: logr.Discard(), Cluster: &eventlog.Cluster{
			Name: "server-" + strconv.Itoa(i), ListenHost: "127.0.0.1", ListenPort: ports[i], Advertise: routes[i], Routes: routes, TLS: config,
		}})
	}
	return all
}

// closeLog closes a log. A server of a busy process may not confirm that in time.
func closeLog(t *testing.T, log *eventlog.Log) {
	t.Helper()
	if err := log.Close(); err != nil && !errors.Is(err, nats.ErrTimeout) {
		t.Fatal(err)
	}
}

// TestReplicas moves the archive of a single server to the replicas that it becomes one of. Each replica reads the archive, and the next owner of the
// Broker continues it after the first one was lost.
func TestReplicas(t *testing.T) {
	options := clusterOf(t)
	single := newFixture(t, options[0].Dir, nil)
	single.set(0, "ns/a")
	single.accept("ns/a", 10, "0", "1")
	closeLog(t, single.log)
	all := make([]*fixture, len(options))
	// The archive is moved once all servers run.
	for _, i := range []int{1, 2, 0} {
		log, err := eventlog.Open(t.Context(), options[i])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { log.Close() })
		f := newFixture(t, t.TempDir(), func(o *Options) { o.Log = log })
		f.set(0, "ns/a")
		all[i] = f
	}
	key, uid := keyOf("ns/a")
	var at Position
	read := func(f *fixture, want ...string) error {
		page, err := f.Read(t.Context(), Query{Broker: key, UID: uid, MaxEvents: 100, MaxBytes: 1 << 20})
		if got := slices.Sorted(slices.Values(sets.New(idsOf(page.Events)...).UnsortedList())); err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("it read %q, want %q", got, want)
		}
		at = page.Next
		return err
	}
	harness.Eventually(t, "a replica reads the moved archive", func() error { return read(all[1], "0", "1") })
	harness.Eventually(t, "an event is archived", func() error {
		// It is not if a request to the cluster takes too long.
		all[0].accept("ns/a", 10, "2")
		return read(all[0], "0", "1", "2")
	})
	harness.Eventually(t, "another replica reads the event", func() error { return read(all[2], "0", "1", "2") })
	stream, err := all[1].options.Log.Retained(idOf(key.Namespace, uid))
	if err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "three servers have the archive", func() error {
		for _, f := range all {
			if err := f.options.Log.Health(t.Context()); err != nil {
				return err
			}
		}
		// An append of no records adds a server that was missing when the stream was created.
		return stream.AppendTogether(t.Context())
	})
	closeLog(t, all[0].options.Log)
	harness.Eventually(t, "the next owner archives", func() error {
		all[1].accept("ns/a", 10, "3")
		page, err := all[2].Read(t.Context(), Query{Broker: key, UID: uid, At: at, MaxEvents: 1, MaxBytes: 1 << 20})
		if err != nil {
			return err
		}
		if ids := idsOf(page.Events); !slices.Equal(ids, []string{"3"}) || page.Evicted {
			if len(ids) == 1 && ids[0] < "3" && !page.Evicted {
				// An event that was moved or accepted again after a request took too long.
				at = page.Next
			}
			return fmt.Errorf("it read %q, evicted %v", ids, page.Evicted)
		}
		return nil
	})
	harness.Eventually(t, "the state is known", func() error {
		state, err := all[2].State(t.Context(), key, uid)
		if err == nil && (state.Events < 4 || state.First.After(time.Now())) {
			err = fmt.Errorf("it is %+v", state)
		}
		return err
	})
}
