package eventlog

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const (
	// crashMember makes TestClusterChild run a server of a cluster.
	crashMember = "EVENTLOG_CRASH_MEMBER"
	// caughtUp is the output of TestClusterChild when its server has all of the stream.
	caughtUp = "caught up"
)

// crashOptions are the input of a process that runs a server.
type crashOptions struct {
	Dir, CA, Cert, Key string
	// The other fields are fields of Cluster.
	Name, Advertise string
	ListenPort      int
	Routes          []string
}

// TestClusterChild is the process that TestClusterCrash kills.
func TestClusterChild(t *testing.T) {
	t.Parallel()
	given := os.Getenv(crashMember)
	if given == "" {
		t.Skip("runs as a process of TestClusterCrash")
	}
	var o crashOptions
	if err := json.Unmarshal([]byte(given), &o); err != nil {
		t.Fatal(err)
	}
	c := &Cluster{
		Name: o.Name, ListenHost: "127.0.0.1", ListenPort: o.ListenPort, Advertise: o.Advertise, Routes: o.Routes,
		TLS: transportOf(t, o.CA, o.Cert, o.Key),
	}
	l, err := Open(context.Background(), Options{Dir: o.Dir, Replicas: len(o.Routes), Cluster: c})
	if err != nil {
		t.Fatal(err)
	}
	for ; ; <-time.After(20 * time.Millisecond) {
		session := l.server.Current()
		if session != nil && l.Health(t.Context()) == nil && session.Embedded.JetStreamIsStreamCurrent(server.DEFAULT_GLOBAL_ACCOUNT, l.names("a").Name()) {
			break
		}
	}
	fmt.Println(caughtUp)
	<-t.Context().Done()
}

// child runs a server in a separate process, which the returned function kills. current is closed when the server has all of the
// stream.
func child(t *testing.T, o crashOptions) (kill func(), current <-chan struct{}) {
	t.Helper()
	given, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestClusterChild$", "-test.timeout=10m")
	cmd.Env = append(os.Environ(), crashMember+"="+string(given))
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		for lines := bufio.NewScanner(output); lines.Scan(); {
			if lines.Text() == caughtUp {
				close(done)
			}
		}
	}()
	kill = sync.OnceFunc(func() {
		// It may have exited already.
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(kill)
	return kill, done
}

// eventing Content Based Routing-3, eventing Topology Based Routing-3: records that most servers acknowledged survive
// SIGKILL of each of the others.
func TestClusterCrash(t *testing.T) {
	t.Parallel()
	o, files := clusterOf(t, 3)
	options := func(n int) crashOptions {
		c := o[n].Cluster
		return crashOptions{
			Dir: o[n].Dir, CA: files[0], Cert: files[1], Key: files[2],
			Name: c.Name, Advertise: c.Advertise, ListenPort: c.ListenPort, Routes: c.Routes,
		}
	}
	kill := map[int]func(){}
	for _, n := range []int{1, 2} {
		kill[n], _ = child(t, options(n))
	}
	l := open(t, o[0])
	s := opened(t, l, "a")
	replicated(t, s, 3)
	k, _ := start(t, s, "", ConsumeOptions{MaxSegments: 1 << 16})

	var mu sync.Mutex
	stored := map[string]bool{}
	var failures atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for a := range 4 {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				data := fmt.Sprintf("%d-%d-%s", a, i, strings.Repeat("x", 100))
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
		mu.Lock()
		before := len(stored)
		mu.Unlock()
		kill[n]()
		eventually(t, "the others continue", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(stored) > before+100
		})
		// The others consider a killed server current for some time, so the server itself reports when it is.
		_, current := child(t, options(n))
		select {
		case <-current:
		case <-time.After(patience):
			t.Fatalf("server %d has not caught up after %v", n, patience)
		}
	}
	cancel()
	wg.Wait()
	q, _ := start(t, s, "q", ConsumeOptions{})
	for queue, k := range map[string]*sink{"": k, "q": q} {
		missing := map[string]bool{}
		for r := range stored {
			missing[r] = true
		}
		for len(missing) > 0 {
			for _, r := range k.collect(t, 1) {
				delete(missing, r)
			}
		}
		t.Logf("queue '%s': %d records stored, %d appends failed", queue, len(stored), failures.Load())
	}
}

// A server whose disk is full stops, loses nothing that the others have, and continues when it has space again.
func TestClusterDiskFull(t *testing.T) {
	t.Parallel()
	o := cluster(t, 3)
	disk := small(t, 64)
	o[2].Dir = disk + "/data"
	logs := make([]*Log, 3)
	for i := range o {
		logs[i] = open(t, o[i])
	}
	s := opened(t, logs[0], "a")
	replicated(t, s, 3)
	appendAll(t, s, "", numbers(0, 10)...)
	fill(t, disk, 100)
	n := 10
	eventually(t, "the server without space has stopped", func() bool {
		if err := appendTo(t.Context(), s, Record{Data: fmt.Appendf(nil, "%0*d", 64<<10, n)}); err != nil {
			t.Fatalf("append while one of three servers has no space: %v", err)
		}
		n++
		return logs[2].Health(t.Context()) != nil && logs[2].server.Err() != nil
	})
	unfill(t, disk)
	eventually(t, "it runs again and has all records", func() bool {
		current := logs[2].server.Current()
		return logs[2].Health(t.Context()) == nil && current != nil && current.Embedded.JetStreamIsStreamCurrent(server.DEFAULT_GLOBAL_ACCOUNT, s.names.Name())
	})
	closed(t, logs[0])
	k, _ := start(t, opened(t, logs[2], "a"), "", ConsumeOptions{})
	began := time.Now()
	k.collect(t, n)
	t.Logf("%d records arrived within %v", n, time.Since(began))
}
