package eventing

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/test/bench/figures"
)

const (
	// idleBrokers is the number of idle Brokers, each with some Triggers.
	idleBrokers       = 1000
	triggersPerBroker = 5
)

// BenchmarkIdleMemory measures the memory of a server with many idle Brokers and Triggers, and the time until all are ready.
func BenchmarkIdleMemory(b *testing.B) {
	figures.Once(b, func() {
		s := start(b)
		none := settledMemory(b, s.PID())
		brokers := make([]*eventingv1.Broker, idleBrokers)
		var triggers []*eventingv1.Trigger
		for i := range brokers {
			brokers[i] = newBroker(fmt.Sprintf("idle-%d", i))
			for j := range triggersPerBroker {
				triggers = append(triggers, newTrigger(brokers[i].Name, fmt.Sprintf("idle-%d-%d", i, j), eventType, subscribers.at(0)))
			}
		}
		began := time.Now()
		create(b, s.Knative.EventingV1().Brokers(namespace), brokers)
		brokersReady := time.Since(began)
		create(b, s.Knative.EventingV1().Triggers(namespace), triggers)
		b.ReportMetric(brokersReady.Seconds(), "brokers-ready-s")
		b.ReportMetric((time.Since(began) - brokersReady).Seconds(), "triggers-ready-s")
		many := settledMemory(b, s.PID())
		s.profileHeap(b)
		b.ReportMetric(none.resident, "empty-server-MB")
		b.ReportMetric(many.resident-none.resident, "added-MB")
		b.ReportMetric(many.anonymous-none.anonymous, "added-anonymous-MB")
	})
}

// memory returns the resident memory of a process in megabytes, and its anonymous part.
type memory struct{ resident, anonymous float64 }

// settledMemory returns the minimum memory of an idle process over some time, after memory for earlier work was released.
func settledMemory(b *testing.B, pid int) memory {
	b.Helper()
	least := memoryOf(b, pid)
	for began := time.Now(); time.Since(began) < 2*window; {
		//nolint:forbidigo // The time of the garbage collector's release is unknown.
		time.Sleep(time.Second)
		if now := memoryOf(b, pid); now.resident < least.resident {
			least = now
		}
	}
	return least
}

var memoryLine = regexp.MustCompile(`(?m)^(VmRSS|RssAnon):\s+(\d+) kB$`)

func memoryOf(b *testing.B, pid int) memory {
	b.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	var m memory
	for _, match := range memoryLine.FindAllSubmatch(status, -1) {
		kilobytes, err := strconv.ParseFloat(string(match[2]), 64)
		if err != nil {
			b.Fatal(err)
		}
		if string(match[1]) == "VmRSS" {
			m.resident = kilobytes / 1000
		} else {
			m.anonymous = kilobytes / 1000
		}
	}
	if m.resident == 0 || m.anonymous == 0 {
		b.Fatalf("no resident memory in %s", status)
	}
	return m
}
