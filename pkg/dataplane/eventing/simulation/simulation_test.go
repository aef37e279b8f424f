package simulation

import (
	"bytes"
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/util/sets"
)

var (
	seed      = flag.Uint64("seed", 0, "Run only the history of this seed, and print its trace.")
	first     = flag.Uint64("first", 1, "Seed of the first history.")
	histories = flag.Uint64("histories", 1000, "Number of histories.")
	worker    = flag.Bool("worker", false, "Run the histories in this process.")
	digests   = flag.Bool("digests", false, "Print a hash of each trace.")
)

// tooMany is the number of failed histories after which a worker gives up.
const tooMany = 10

// TestHistories runs random histories on all processors: each in a process of its own, in which one goroutine runs at a time.
func TestHistories(t *testing.T) {
	switch {
	case *seed != 0 && !*worker:
		*first, *histories = *seed, 1
		t.Logf("%s", runWorker(t, *first, *histories, fmt.Sprint("-seed=", *seed), "-test.v"))
		return
	case *worker:
		synctest.Test(t, runHistories)
		return
	}
	var workers sync.WaitGroup
	processors := uint64(runtime.GOMAXPROCS(0))
	for i := range processors {
		from, to := *first+i**histories/processors, *first+(i+1)**histories/processors
		workers.Go(func() { runWorker(t, from, to-from) })
	}
	workers.Wait()
}

// TestRepeatable checks that a history has the same trace each time, regardless of earlier histories in the same process. The
// runtime makes random choices of its own, such as the order of ready cases of a select statement: a few histories may differ.
func TestRepeatable(t *testing.T) {
	if *worker {
		t.Skip("a worker runs histories only")
	}
	var all, rest []byte
	// The runtime also interrupts goroutines, the more the slower the processor is: a history may need several attempts.
	for range 5 {
		var workers sync.WaitGroup
		workers.Go(func() { all = append(all, runWorker(t, 1, 60, "-digests")...) })
		workers.Go(func() { rest = append(rest, runWorker(t, 31, 30, "-digests")...) })
		workers.Wait()
		same := sets.New[string]()
		for line := range bytes.Lines(rest) {
			if fields := bytes.Fields(line); len(fields) == 3 && string(fields[0]) == "digest" && bytes.Contains(all, line) {
				same.Insert(string(fields[1]))
			}
		}
		if len(same) >= 24 {
			return
		}
	}
	t.Errorf("fewer than 24 of 30 histories have the same trace twice:\n%s\nand alone:\n%s", all, rest)
}

// runWorker runs histories in a process of its own, and returns its output.
func runWorker(t *testing.T, from, n uint64, arguments ...string) []byte {
	t.Helper()
	arguments = append(arguments, "-test.run=^TestHistories$", "-test.timeout=0", "-worker", fmt.Sprint("-first=", from), fmt.Sprint("-histories=", n))
	command := exec.CommandContext(t.Context(), os.Args[0], arguments...)
	command.Env = append(os.Environ(), "GOMAXPROCS=1", "GODEBUG=asyncpreemptoff=1,randseednop=0")
	output, err := command.CombinedOutput()
	if err != nil {
		t.Errorf("histories %d to %d: %v\n%s", from, from+n-1, err, bytes.TrimSpace(output))
	}
	return output
}

// runHistories runs the histories of this process.
func runHistories(t *testing.T) {
	failed := 0
	for s := *first; s < *first+*histories; s++ {
		failures, trace := simulate(s)
		text := strings.Join(trace, "\n")
		if *digests {
			fmt.Printf("digest %d %x\n", s, sha256.Sum256([]byte(text)))
		}
		if *seed != 0 {
			t.Logf("trace:\n%s", text)
		}
		if len(failures) == 0 {
			continue
		}
		t.Errorf("repeat by: go test ./pkg/dataplane/eventing/simulation -run TestHistories -seed %d\n%s", s, strings.Join(failures, "\n"))
		if failed++; failed == tooMany {
			t.Fatal("too many failures")
		}
	}
}
