package eventing

import (
	"bytes"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
	"time"
)

const (
	// connections is the number of keep-alive connections for each Broker.
	connections = 64
	// threads is the number of wrk threads.
	threads = 2
	// eventType is the type of all events.
	eventType = "com.example.bench"
	// warmUp is the time of sending before a measurement, and its first part that does not count.
	warmUp = 2 * time.Second
)

var (
	wrkCount   = regexp.MustCompile(`(\d+) requests in ([0-9.]+m?s)`)
	wrkRefused = regexp.MustCompile(`Non-2xx or 3xx responses: (\d+)`)
	wrkFaults  = regexp.MustCompile(`Socket errors: .*`)
	// severalBrokers stands for several Brokers in a URL (post.lua).
	severalBrokers = regexp.MustCompile(`\*(\d+)$`)
)

// sending is a running wrk.
type sending struct {
	cmd *exec.Cmd
	out bytes.Buffer
}

// send starts to post events to url as fast as they are answered. A URL that ends in *N stands for N Brokers.
// fields are lines of each request's header.
func send(b *testing.B, url, run string, duration time.Duration, fields ...string) *sending {
	b.Helper()
	brokers := 1
	if several := severalBrokers.FindStringSubmatch(url); several != nil {
		var err error
		if brokers, err = strconv.Atoi(several[1]); err != nil {
			b.Fatal(err)
		}
	}
	s := &sending{}
	s.cmd = exec.CommandContext(b.Context(), wrk, "-t", strconv.Itoa(threads), "-c", strconv.Itoa(brokers*connections),
		"--timeout", "30s", "-d", seconds(duration)+"s", "-s", "post.lua", url, "--", run, eventType, strconv.Itoa(threads))
	s.cmd.Args = append(s.cmd.Args, fields...)
	s.cmd.Stdout, s.cmd.Stderr = &s.out, &s.out
	if err := s.cmd.Start(); err != nil {
		b.Fatal(err)
	}
	return s
}

// sent is the result of sending.
type sent struct {
	accepted, refused int64
	// duration is how long sending took.
	duration time.Duration
}

// rate is the number of events accepted per second.
func (s sent) rate() float64 { return float64(s.accepted) / s.duration.Seconds() }

// wait waits until wrk ends.
func (s *sending) wait(b *testing.B) sent {
	b.Helper()
	if err := s.cmd.Wait(); err != nil {
		b.Fatalf("wrk: %v\n%s", err, &s.out)
	}
	if fault := wrkFaults.Find(s.out.Bytes()); fault != nil {
		b.Fatalf("wrk: %s", fault)
	}
	match := wrkCount.FindSubmatch(s.out.Bytes())
	if match == nil {
		b.Fatalf("wrk printed no number of requests:\n%s", &s.out)
	}
	var result sent
	var err error
	if result.accepted, err = strconv.ParseInt(string(match[1]), 10, 64); err != nil {
		b.Fatal(err)
	}
	if result.duration, err = time.ParseDuration(string(match[2])); err != nil {
		b.Fatal(err)
	}
	if match := wrkRefused.FindSubmatch(s.out.Bytes()); match != nil {
		if result.refused, err = strconv.ParseInt(string(match[1]), 10, 64); err != nil {
			b.Fatal(err)
		}
		result.accepted -= result.refused
	}
	return result
}
