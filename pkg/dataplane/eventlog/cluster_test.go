package eventlog

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/consume"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/layout"
	"github.com/knative-apiserver/knative-apiserver/test/natstest"
	"github.com/knative-apiserver/knative-apiserver/test/port"
)

// transportOf returns the configuration of servers that authenticate each other by the certificates in files.
func transportOf(t testing.TB, ca, cert, key string) *tls.Config {
	t.Helper()
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
	return &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: pool, ClientCAs: pool,
		GetCertificate:       func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &pair, nil },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil },
	}
}

// verifying returns a configuration that verifies by a function, as configurations with changing authorities do.
func verifying(c *tls.Config) *tls.Config {
	c = c.Clone()
	roots := c.RootCAs
	c.InsecureSkipVerify, c.RootCAs, c.ClientCAs = true, nil, nil
	c.VerifyConnection = func(s tls.ConnectionState) error {
		if len(s.PeerCertificates) == 0 {
			return errors.New("no certificate")
		}
		_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		return err
	}
	return c
}

// cluster returns the options of n servers.
func cluster(t testing.TB, n int) []Options {
	t.Helper()
	all, _ := clusterOf(t, n)
	return all
}

// clusterOf returns the options of n servers, and the files of the authority, the certificate and the key that they use.
func clusterOf(t testing.TB, n int) ([]Options, [3]string) {
	t.Helper()
	ca, cert, key := natstest.Certificates(t)
	config := transportOf(t, ca, cert, key)
	var routes []string
	var ports []int
	for range n {
		p, err := port.Stable()
		if err != nil {
			t.Fatal(err)
		}
		ports = append(ports, p)
		routes = append(routes, net.JoinHostPort("127.0.0.1", strconv.Itoa(p)))
	}
	var all []Options
	for i := range n {
		all = append(all, Options{Dir: t.TempDir(), Replicas: n, Cluster: &Cluster{
			Name: "server-" + strconv.Itoa(i), ListenHost: "127.0.0.1", ListenPort: ports[i], Advertise: routes[i], Routes: routes, TLS: config,
		}})
	}
	return all, [3]string{ca, cert, key}
}

// opened waits until a stream can be opened.
func opened(t testing.TB, l *Log, id string) *Stream {
	t.Helper()
	var s *Stream
	eventually(t, "stream '"+id+"' is opened", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		var err error
		if s, err = l.Stream(ctx, StreamConfig{ID: id}); err != nil && !errors.Is(err, ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("opening stream '%s': %v", id, err)
		}
		return err == nil
	})
	return s
}

func replicas(t testing.TB, s *Stream) int {
	t.Helper()
	stream, err := s.log.server.Current().JetStream.Stream(t.Context(), s.names.Name())
	if err != nil {
		return 0
	}
	return stream.CachedInfo().Config.Replicas
}

// replicated waits until n servers hold a stream. It is created with fewer if the others join later.
func replicated(t testing.TB, s *Stream, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d servers hold stream '%s'", n, s.config.ID), func() bool { return replicas(t, s) == n })
}

// clusterStream opens n servers and a stream that all of them hold.
func clusterStream(t testing.TB, n int) ([]Options, []*Log, *Stream) {
	t.Helper()
	o := cluster(t, n)
	logs := make([]*Log, n)
	for i := range o {
		logs[i] = open(t, o[i])
	}
	s := opened(t, logs[0], "a")
	replicated(t, s, n)
	return o, logs, s
}

// A server opens at once, and accepts records as soon as the others run. While one of them is down, a new stream has fewer replicas.
func TestClusterStarts(t *testing.T) {
	t.Parallel()
	o := cluster(t, 3)
	l0 := open(t, o[0])
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := l0.Stream(ctx, StreamConfig{ID: "a"}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("stream without the other servers: %v, want ErrUnavailable", err)
	}
	if err := l0.Health(t.Context()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("health without the other servers: %v, want ErrUnavailable", err)
	}
	l1, l2 := open(t, o[1]), open(t, o[2])
	a := opened(t, l0, "a")
	replicated(t, a, 3)
	for _, l := range []*Log{l2, l1, l0} {
		closed(t, l)
	}
	l0, l1 = open(t, o[0]), open(t, o[1])
	a = opened(t, l0, "a")
	b := opened(t, l0, "b")
	replicated(t, b, 2)
	replicated(t, a, 3)
	appendAll(t, a, "", "x")
	appendAll(t, b, "", "x")
	l2 = open(t, o[2])
	replicated(t, b, 3)
	for _, l := range []*Log{l0, l1, l2} {
		eventually(t, "all are well", func() bool { return l.Health(t.Context()) == nil })
	}
	// Each server reads all records, regardless of the leader of the stream.
	for _, id := range []string{"a", "b"} {
		k, _ := start(t, opened(t, l2, id), "", ConsumeOptions{})
		k.collect(t, 1)
	}
	var m *Stream
	eventually(t, "a stream in memory is opened", func() (ok bool) {
		var err error
		m, err = l1.Stream(patient(t), StreamConfig{ID: "m", Memory: true})
		return err == nil
	})
	replicated(t, m, 3)
	appendAll(t, m, "", "x")
	closed(t, l0)
	k, _ := start(t, m, "", ConsumeOptions{})
	k.collect(t, 1)
}

// eventing Content Based Routing-3, eventing Topology Based Routing-3: acknowledged records survive that each
// server is stopped under load, and that each loses its store.
func TestClusterMemberLost(t *testing.T) {
	t.Parallel()
	o, logs, s := clusterStream(t, 3)
	appendAll(t, s, "q", numbers(0, 10)...)
	var mu sync.Mutex
	stored := map[string]bool{}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(stored)
	}
	var failures atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for a := range 4 {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				data := fmt.Sprintf("%d-%d", a, i)
				if err := s.Append(ctx, Record{Data: []byte(data)}, Record{Queue: "q", Data: []byte(data)}); err != nil {
					failures.Add(1)
					continue
				}
				mu.Lock()
				stored[data] = true
				mu.Unlock()
			}
		})
	}
	for _, n := range []int{1, 2} {
		closed(t, logs[n])
		if err := os.RemoveAll(o[n].Dir); err != nil {
			t.Fatal(err)
		}
		logs[n] = open(t, o[n])
		eventually(t, "the server that lost its store has recovered", func() bool {
			return logs[n].Health(t.Context()) == nil &&
				logs[n].server.Current().Embedded.JetStreamIsStreamCurrent(server.DEFAULT_GLOBAL_ACCOUNT, s.names.Name())
		})
		before := count()
		eventually(t, "records are stored with all servers", func() bool { return count() >= before+10 })
	}
	cancel()
	wg.Wait()
	closed(t, logs[0])
	if err := os.RemoveAll(o[0].Dir); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d records stored, %d appends failed", len(stored), failures.Load())
	for _, queue := range []string{"", "q"} {
		missing := map[string]bool{}
		for r := range stored {
			missing[r] = true
		}
		k, _ := start(t, opened(t, logs[1], "a"), queue, ConsumeOptions{})
		for len(missing) > 0 {
			for _, r := range k.collect(t, 1) {
				delete(missing, r)
			}
		}
	}
}

// When the owner of a stream changes, unacknowledged segments are redelivered to the next one immediately.
func TestReleaseStream(t *testing.T) {
	t.Parallel()
	o := cluster(t, 2)
	for _, one := range o {
		one.Cluster.TLS = verifying(one.Cluster.TLS)
	}
	logs := []*Log{open(t, o[0]), open(t, o[1])}
	// The servers may be paused.
	const rounds = 3
	for round := 1; ; round++ {
		took := releaseStream(t, logs, fmt.Sprint("a", round), fmt.Sprint("b", round))
		if took <= consume.RemoteAckWait/2 {
			return
		}
		if round == rounds {
			t.Fatalf("the next owner got the segments after %v, want at once", took)
		}
	}
}

// releaseStream consumes two streams in a process, releases one, and returns the time until another process has its segments.
func releaseStream(t *testing.T, logs []*Log, released, kept string) (took time.Duration) {
	t.Helper()
	first, other := opened(t, logs[0], released), opened(t, logs[0], kept)
	appendAll(t, first, "", numbers(0, 5)...)
	appendAll(t, other, "", "x")
	k, _ := start(t, first, "", ConsumeOptions{})
	held := []*Segment{k.next(t), k.next(t), k.next(t), k.next(t), k.next(t)}
	others, _ := start(t, other, "", ConsumeOptions{})
	otherSegment := others.next(t)
	held[0].Ack()

	began := time.Now()
	logs[0].ReleaseStream(released)
	next, _ := start(t, opened(t, logs[1], released), "", ConsumeOptions{})
	next.collect(t, 4)
	took = time.Since(began)
	// Acknowledgements of the previous owner have no effect, and it gets no segment.
	held[1].Ack()
	k.none(t, 300*time.Millisecond)
	appendAll(t, first, "", "y")
	next.collect(t, 1)
	otherSegment.Ack()
	eventually(t, "the other stream is still consumed", func() bool { return queues(t, other)[""] == 0 })
	return took
}

// A server without a certificate of the servers' authority gets no event.
func TestClusterAuthenticates(t *testing.T) {
	t.Parallel()
	for name, form := range map[string]func(*tls.Config) *tls.Config{
		"by authorities": func(c *tls.Config) *tls.Config { return c },
		"by a function":  verifying,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := cluster(t, 2)
			ca, cert, key := natstest.Certificates(t)
			o[0].Cluster.TLS = form(o[0].Cluster.TLS)
			o[1].Cluster.TLS = form(transportOf(t, ca, cert, key))
			l := open(t, o[0])
			open(t, o[1])
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			if _, err := l.Stream(ctx, StreamConfig{ID: "a"}); !errors.Is(err, ErrUnavailable) {
				t.Errorf("stream: %v, want ErrUnavailable", err)
			}
			if n := l.server.Current().Embedded.NumRoutes(); n != 0 {
				t.Errorf("%d connections between servers exist, want none", n)
			}
		})
	}
}

func TestClusterOptions(t *testing.T) {
	t.Parallel()
	valid := cluster(t, 2)[0]
	for name, change := range map[string]func(*Cluster){
		"no name": func(c *Cluster) { c.Name = "" },
		"no TLS":  func(c *Cluster) { c.TLS = nil },
		"no check": func(c *Cluster) {
			c.TLS = c.TLS.Clone()
			c.TLS.InsecureSkipVerify = true
		},
		"no port":      func(c *Cluster) { c.Advertise = "host" },
		"no other":     func(c *Cluster) { c.Routes = []string{c.Advertise} },
		"route's port": func(c *Cluster) { c.Routes = []string{"a", "b"} },
	} {
		c := *valid.Cluster
		change(&c)
		o := valid
		o.Cluster = &c
		if l, err := Open(t.Context(), o); err == nil {
			l.Close()
			t.Errorf("%s: no error", name)
		}
	}
}

// Acknowledgements to a cluster share entries of its logs. After Close they are durable.
func TestClusterAcknowledgements(t *testing.T) {
	t.Parallel()
	_, logs, s := clusterStream(t, 3)
	const n = 100
	appendAll(t, s, "", numbers(0, n)...)
	k, _ := start(t, s, "", ConsumeOptions{})
	var held []*Segment
	for range n {
		held = append(held, k.next(t))
	}
	committed := func() (entries uint64) {
		for _, groups := range *logs[0].server.Current().Embedded.Raftz(&server.RaftzOptions{AccountFilter: server.DEFAULT_GLOBAL_ACCOUNT}) {
			for name, group := range groups {
				if strings.HasPrefix(name, "S-") || strings.HasPrefix(name, "C-") {
					entries += group.Committed
				}
			}
		}
		return entries
	}
	before := committed()
	for _, segment := range held {
		segment.Ack()
		<-time.After(2 * time.Millisecond)
	}
	eventually(t, "all segments are removed", func() bool { return queues(t, s)[""] == 0 })
	entries := committed() - before
	t.Logf("%d acknowledgements took %d entries", n, entries)
	if entries > n/2 {
		t.Errorf("%d acknowledgements took %d entries of the logs of stream and consumer, want half as many at most", n, entries)
	}

	appendAll(t, s, "", "x")
	k.next(t).Ack()
	closed(t, logs[0])
	next, _ := start(t, opened(t, logs[1], "a"), "", ConsumeOptions{})
	next.none(t, time.Second)
}

// The log of a consumer is in memory: segments that were not acknowledged are redelivered after most servers restarted, while the
// others are down.
func TestClusterConsumersRestart(t *testing.T) {
	t.Parallel()
	o, logs, s := clusterStream(t, 3)
	appendAll(t, s, "", numbers(0, 10)...)
	k, _ := start(t, s, "", ConsumeOptions{})
	k.collect(t, 5)
	eventually(t, "half is acknowledged", func() bool { return queues(t, s)[""] == 5 })
	for _, l := range logs {
		closed(t, l)
	}
	logs[0], logs[1] = open(t, o[0]), open(t, o[1])
	k, _ = start(t, opened(t, logs[0], "a"), "", ConsumeOptions{})
	if got := k.collect(t, 5); !slices.Equal(got, numbers(5, 10)) {
		t.Errorf("redelivered %v, want the records that were not acknowledged", got)
	}
}

// A consumer whose log is stored elsewhere is created again: on disk by earlier versions, or in memory before its queue became ordered.
func TestClusterConsumerStorage(t *testing.T) {
	t.Parallel()
	_, logs, s := clusterStream(t, 2)
	eventually(t, "the consumer is created", func() bool {
		_, err := logs[1].server.Current().JetStream.CreateOrUpdateConsumer(t.Context(), s.names.Name(), jetstream.ConsumerConfig{
			Durable: layout.Consumer(""), FilterSubject: s.names.Subject(""), AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: -1, MaxAckPending: -1,
			InactiveThreshold: 5 * time.Minute,
		})
		return err == nil
	})
	for _, maxSegments := range []int{0, 1, 0} {
		appendAll(t, s, "", numbers(0, 3)...)
		k, c := start(t, s, "", ConsumeOptions{MaxSegments: maxSegments})
		if got := k.collect(t, 3); !slices.Equal(got, numbers(0, 3)) {
			t.Errorf("with %d segments: delivered %v, want all records", maxSegments, got)
		}
		eventually(t, "the segments are removed", func() bool { return queues(t, s)[""] == 0 })
		c.Stop()
	}
}
