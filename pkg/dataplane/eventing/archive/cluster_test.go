package archive

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/go-logr/logr"
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

// TestReplicas moves the archive of a single server to the replicas that it becomes one of. Each replica reads the archive, and the next owner of the
// Broker continues it after the first one was lost.
func TestReplicas(t *testing.T) {
	options := clusterOf(t)
	single := newFixture(t, options[0].Dir, nil)
	single.set(0, "ns/a")
	single.accept("ns/a", 10, "0", "1")
	if err := single.log.Close(); err != nil {
		t.Fatal(err)
	}
	var all []*fixture
	for i := range options {
		log, err := eventlog.Open(t.Context(), options[i])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { log.Close() })
		f := newFixture(t, t.TempDir(), func(o *Options) { o.Log = log })
		f.set(0, "ns/a")
		all = append(all, f)
	}
	key, uid := keyOf("ns/a")
	await := func(f *fixture, want ...string) (at Position) {
		t.Helper()
		harness.Eventually(t, fmt.Sprintf("a replica reads %q", want), func() error {
			page, err := f.Read(t.Context(), Query{Broker: key, UID: uid, MaxEvents: 100, MaxBytes: 1 << 20})
			got := slices.Sorted(slices.Values(sets.New(idsOf(page.Events)...).UnsortedList()))
			if err != nil {
				return err
			}
			if !slices.Equal(got, want) {
				return fmt.Errorf("it read %q", got)
			}
			at = page.Next
			return nil
		})
		return at
	}
	await(all[1], "0", "1")
	all[0].accept("ns/a", 10, "2")
	await(all[0], "0", "1", "2")
	at := await(all[2], "0", "1", "2")
	if err := all[0].options.Log.Close(); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the next owner archives", func() error {
		all[1].accept("ns/a", 10, "3")
		page, err := all[2].Read(t.Context(), Query{Broker: key, UID: uid, At: at, MaxEvents: 1, MaxBytes: 1 << 20})
		if err != nil {
			return err
		}
		if !slices.Equal(idsOf(page.Events), []string{"3"}) || page.Evicted {
			return fmt.Errorf("it read %q, evicted %v", idsOf(page.Events), page.Evicted)
		}
		return nil
	})
	if state, err := all[2].State(t.Context(), key, uid); err != nil || state.Events < 4 || state.First.After(time.Now()) {
		t.Errorf("state %+v: %v", state, err)
	}
}
