package eventlog

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/server"
	"github.com/knative-apiserver/knative-apiserver/test/natstest"
)

func TestSecured(t *testing.T) {
	ca, cert, key := natstest.Certificates(t)
	config, creds := natstest.Credentials(t)
	servers := natstest.Start(t, natstest.Options{
		Config: config, CAFile: ca, CertFile: cert, KeyFile: key,
		ConnectOptions: []nats.Option{nats.RootCAs(ca), nats.ClientCert(cert, key), nats.UserCredentials(creds)},
	})
	o := Options{URL: servers.URL(), CredentialsFile: creds, CAFile: ca, CertFile: cert, KeyFile: key}
	s := stream(t, open(t, o), "a")
	k, _ := start(t, s, "", ConsumeOptions{})
	appendAll(t, s, "", "x")
	k.collect(t, 1)

	for name, change := range map[string]func(*Options){
		"no credentials": func(o *Options) { o.CredentialsFile = "" },
		"no authority":   func(o *Options) { o.CAFile = "" },
		"no certificate": func(o *Options) { o.CertFile, o.KeyFile = "", "" },
	} {
		without := o
		change(&without)
		if l, err := Open(t.Context(), without); err == nil {
			t.Errorf("%s: no error", name)
			l.Close()
		} else {
			t.Logf("%s: %v", name, err)
		}
	}
}

func TestUnsuitable(t *testing.T) {
	single := natstest.Start(t, natstest.Options{})
	plain := natstest.Start(t, natstest.Options{NoJetStream: true})
	for name, o := range map[string]Options{
		"more replicas than servers": {URL: single.URL(), Replicas: 3},
		"without JetStream":          {URL: plain.URL()},
	} {
		if l, err := Open(t.Context(), o); err == nil {
			t.Errorf("%s: no error", name)
			l.Close()
		} else {
			t.Logf("%s: %v", name, err)
		}
	}
}

// A server that is down temporarily blocks appends meanwhile, and no record is lost.
func TestReconnect(t *testing.T) {
	servers := natstest.Start(t, natstest.Options{})
	s := stream(t, open(t, Options{URL: servers.URL()}), "a")
	m, err := s.log.Stream(patient(t), StreamConfig{ID: "m", Memory: true})
	if err != nil {
		t.Fatal(err)
	}
	k, _ := start(t, s, "", ConsumeOptions{})
	appendAll(t, s, "", "x")
	k.collect(t, 1)
	servers.Nodes[0].Kill()
	if err := s.Append(t.Context(), Record{Data: []byte("y")}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("append without server: %v, want ErrUnavailable", err)
	}
	servers.Nodes[0].Restart()
	servers.Wait()
	appendAll(t, s, "", "z")
	for k.collect(t, 1)[0] != "z" {
		// Rejected records may have been stored.
		continue
	}
	// Its stream was lost with the server.
	eventually(t, "append to memory", func() bool { return m.Append(t.Context(), Record{Data: []byte("x")}) == nil })
}

// eventing Content Based Routing-3, eventing Topology Based Routing-3: records that a cluster acknowledged survive the
// loss of a server.
func TestCluster(t *testing.T) {
	servers := natstest.Start(t, natstest.Options{Nodes: 3})
	s := stream(t, open(t, Options{URL: servers.URL(), Replicas: 3}), "a")
	k, _ := start(t, s, "", ConsumeOptions{})
	var mu sync.Mutex
	stored := map[string]bool{}
	var failures, stop atomic.Int64
	var wg sync.WaitGroup
	for a := range 8 {
		wg.Go(func() {
			for i := 0; stop.Load() == 0; i++ {
				data := fmt.Sprintf("%d-%d", a, i)
				records := []Record{{Data: []byte(data)}, {Queue: "q", Data: []byte(data)}}
				if err := s.Append(t.Context(), records...); err != nil {
					failures.Add(1)
					continue
				}
				mu.Lock()
				stored[data] = true
				mu.Unlock()
			}
		})
	}
	for _, node := range servers.Nodes[:2] {
		<-time.After(time.Second)
		node.Kill()
		<-time.After(2 * time.Second)
		node.Restart()
		servers.Wait()
	}
	stop.Store(1)
	wg.Wait()
	q, _ := start(t, s, "q", ConsumeOptions{})
	for queue, k := range map[string]*sink{"": k, "q": q} {
		missing := map[string]bool{}
		for r := range stored {
			missing[r] = true
		}
		duplicates := 0
		for len(missing) > 0 {
			for _, r := range k.collect(t, 1) {
				if !missing[r] {
					duplicates++
				}
				delete(missing, r)
			}
		}
		t.Logf("queue '%s': %d records stored, %d more delivered, %d appends failed", queue, len(stored), duplicates, failures.Load())
	}
}

// TestRequestLimits checks the time in which a server must respond: one in this process may be as slow as the process, others may have no leader.
func TestRequestLimits(t *testing.T) {
	for name, test := range map[string]struct {
		options       Options
		least, atMost time.Duration
	}{
		"in this process": {options: Options{Dir: t.TempDir()}, least: 30 * time.Second, atMost: time.Minute},
		"elsewhere":       {options: Options{URL: natstest.Start(t, natstest.Options{}).URL()}, atMost: server.APITimeout},
	} {
		t.Run(name, func(t *testing.T) {
			l := open(t, test.options)
			before := time.Now()
			session, ctx, cancel, err := l.server.Request(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer cancel()
			after := time.Now()
			if deadline, _ := ctx.Deadline(); deadline.Before(before.Add(test.least)) || deadline.After(after.Add(test.atMost)) {
				t.Errorf("a request may take %s, want %s to %s", deadline.Sub(before), test.least, test.atMost)
			}
			if limit := session.JetStream.Options().DefaultTimeout; limit < test.least || limit > test.atMost {
				t.Errorf("a request without a deadline of its own may take %s, want %s to %s", limit, test.least, test.atMost)
			}
		})
	}
}
