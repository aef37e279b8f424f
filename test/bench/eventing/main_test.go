// Package eventing measures the cost of the broker: events through it compared with events sent directly to the subscriber, and
// with the disk, with sender, subscriber and broker on the same cores.
//
// Environment variables change the duration and enable profiles (see also harness.ProfilesVariable):
//
//	EVENTING_BENCH_WINDOW      duration of one measurement, default 10s
//	EVENTING_BENCH_ROUNDS      number of alternating rounds, default 3
//	EVENTING_BENCH_HEAPPROFILE file for a heap profile of the server with many idle triggers
package eventing

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

var (
	// wrk is the path of the load generator.
	wrk string
	// subscribers is the process that receives the events.
	subscribers *sinkProcess
	// window is the duration of one measurement, rounds the number of alternating rounds: other load on the machine affects all
	// subjects.
	window = 10 * time.Second
	rounds = 3
)

func TestMain(m *testing.M) {
	if os.Getenv(sinkVariable) != "" {
		fmt.Fprintln(os.Stderr, serveSink())
		os.Exit(1)
	}
	flag.Parse()
	if flag.Lookup("test.bench").Value.String() == "" {
		// This package has no tests; without benchmarks nothing is started.
		os.Exit(m.Run())
	}
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	if wrk, err = exec.LookPath("wrk"); err != nil {
		return 0, fmt.Errorf("the load generator is not installed, run `apt-get install wrk`: %w", err)
	}
	if value := os.Getenv("EVENTING_BENCH_WINDOW"); value != "" {
		if window, err = time.ParseDuration(value); err != nil || window < 2*warmUp {
			return 0, errors.Join(fmt.Errorf("EVENTING_BENCH_WINDOW must be a duration of %s or more", 2*warmUp), err)
		}
	}
	if value := os.Getenv("EVENTING_BENCH_ROUNDS"); value != "" {
		if rounds, err = strconv.Atoi(value); err != nil || rounds < 1 {
			return 0, errors.Join(errors.New("EVENTING_BENCH_ROUNDS must be a number from 1"), err)
		}
	}
	if subscribers, err = startSink("127.0.0.1"); err != nil {
		return 0, err
	}
	defer subscribers.Kill()
	return m.Run(), nil
}

// server is a server for one benchmark, with an administrator's clients.
type server struct {
	*harness.Standalone
	*harness.Clients
}

func start(b *testing.B, args ...string) *server {
	b.Helper()
	standalone := harness.RunStandalone(b, filepath.Join(b.TempDir(), "data"), args...)
	clients, err := harness.ClientsOf(standalone.Kubeconfig)
	if err != nil {
		b.Fatal(err)
	}
	return &server{Standalone: standalone, Clients: clients}
}

// profileHeap writes a heap profile of the server to the file that EVENTING_BENCH_HEAPPROFILE names, if any.
func (s *server) profileHeap(b *testing.B) {
	b.Helper()
	file := os.Getenv("EVENTING_BENCH_HEAPPROFILE")
	if file == "" {
		return
	}
	if err := s.WriteProfile(b.Context(), "heap", file); err != nil {
		b.Errorf("profiling the server into %s: %v", file, err)
	}
}

// seconds returns d in whole seconds, for wrk and profiles.
func seconds(d time.Duration) string { return strconv.FormatInt(int64(d/time.Second), 10) }
