package eventing

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/test/bench/figures"
)

// flow is the throughput of a broker in events per second.
type flow struct {
	// accepted counts events answered 202, delivered the events that reached their subscribers while sending; duplicates is the
	// percentage of duplicate deliveries.
	accepted, delivered, duplicates float64
	// cost is the CPU time of the server per event.
	cost time.Duration
}

// events is the number of events per second that a broker sustains: the accepted ones, or fewer if deliveries to a number of
// subscribers lag.
func (f flow) events(subscribers int) float64 {
	return min(f.accepted, f.delivered/float64(subscribers))
}

// subject is a measured server.
type subject interface {
	// CPUTime returns the CPU time that it has used so far.
	CPUTime(t testing.TB) time.Duration
}

// flowOf measures a broker with a number of matching Triggers. fields are lines of each request's header. It returns once all accepted events are delivered, and fails if
// one never is.
func flowOf(b *testing.B, s subject, address string, matching int, fields ...string) flow {
	b.Helper()
	run := subscribers.begin(b)
	subscribers.drained(b, matching, send(b, address, run, warmUp, fields...).wait(b).accepted)

	run = subscribers.begin(b)
	began, busy := time.Now(), s.CPUTime(b)
	sending := send(b, address, run, window, fields...)
	from, fromTime := deliveredBy(b, began.Add(warmUp/2))
	to, toTime := deliveredBy(b, began.Add(window-warmUp/4))
	sent := sending.wait(b)
	if sent.refused > 0 {
		b.Fatalf("%d events were refused, %d accepted", sent.refused, sent.accepted)
	}
	received := subscribers.drained(b, matching, sent.accepted)
	return flow{
		accepted:   sent.rate(),
		delivered:  float64(to-from) / toTime.Sub(fromTime).Seconds(),
		duplicates: 100 * float64(received.duplicates()) / float64(received.total()),
		cost:       (s.CPUTime(b) - busy) / time.Duration(sent.accepted),
	}
}

// flows returns a measurement of the flow of events to one Trigger, which adds the rate in events/s and the server's CPU time for an event in µs.
func flows(b *testing.B, s subject, url string, rates, costs *[]float64, headers ...string) func() {
	b.Helper()
	return func() {
		f := flowOf(b, s, url, 1, headers...)
		*rates, *costs = append(*rates, f.events(1)), append(*costs, figures.Microseconds(f.cost))
	}
}

// deliveredBy returns the number of distinct events that all subscribers had received at a time, and that time.
func deliveredBy(b *testing.B, at time.Time) (int64, time.Time) {
	b.Helper()
	//nolint:forbidigo // The window's clock.
	time.Sleep(time.Until(at))
	now := time.Now()
	return subscribers.received(b).total(), now
}

// direct measures events per second posted directly to a subscriber.
func direct(b *testing.B) float64 {
	b.Helper()
	send(b, subscribers.at(0), subscribers.begin(b), warmUp).wait(b)
	return send(b, subscribers.at(0), subscribers.begin(b), window).wait(b).rate()
}

// block is the unit of writes between syncs.
const block = 4096

// syncs returns the rate per second at which a block is appended to a file of dir and synced.
func syncs(b *testing.B, dir string) float64 {
	b.Helper()
	file, err := os.Create(filepath.Join(dir, "syncs"))
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		file.Close()
		os.Remove(file.Name())
	}()
	data := make([]byte, block)
	began, count := time.Now(), 0
	for time.Since(began) < warmUp {
		if _, err := file.Write(data); err != nil {
			b.Fatal(err)
		}
		if err := syscall.Fdatasync(int(file.Fd())); err != nil {
			b.Fatal(err)
		}
		count++
	}
	return float64(count) / time.Since(began).Seconds()
}

// BenchmarkOneTrigger measures durable events per second through a Broker with one matching Trigger, and the latency of events
// at half that rate.
func BenchmarkOneTrigger(b *testing.B) {
	figures.Once(b, func() {
		s := start(b)
		address := s.broker(b, 1, 1)
		disk := b.TempDir()
		var directs, disks, events, accepted, delivered, duplicates, costs []float64
		for range rounds {
			directs = append(directs, direct(b))
			disks = append(disks, syncs(b, disk))
			f := flowOf(b, s, address, 1)
			events, accepted, delivered = append(events, f.events(1)), append(accepted, f.accepted), append(delivered, f.delivered)
			duplicates, costs = append(duplicates, f.duplicates), append(costs, figures.Microseconds(f.cost))
		}
		rate := figures.Median(events)
		b.ReportMetric(figures.Median(directs), "direct-events/s")
		b.ReportMetric(figures.Median(disks), "fdatasync/s")
		b.ReportMetric(figures.Median(accepted), "accepted/s")
		b.ReportMetric(figures.Median(delivered), "delivered/s")
		b.ReportMetric(figures.Median(duplicates), "duplicates-%")
		b.ReportMetric(figures.Median(costs), "server-cpu-µs/event")
		b.ReportMetric(100*rate/figures.Median(directs), "broker-%-of-direct")
		b.ReportMetric(rate/figures.Median(disks), "events/fdatasync")

		straight := latenciesAt(b, subscribers.at(0), rate/2)
		through := latenciesAt(b, address, rate/2)
		b.ReportMetric(figures.Milliseconds(straight.toSubscriber.P50), "direct-p50-ms")
		b.ReportMetric(figures.Milliseconds(straight.toSubscriber.P99), "direct-p99-ms")
		b.ReportMetric(figures.Milliseconds(through.toAnswer.P50), "broker-answer-p50-ms")
		b.ReportMetric(figures.Milliseconds(through.toAnswer.P99), "broker-answer-p99-ms")
		b.ReportMetric(figures.Milliseconds(through.toSubscriber.P50), "broker-p50-ms")
		b.ReportMetric(figures.Milliseconds(through.toSubscriber.P99), "broker-p99-ms")
		// Including events whose connection was blocked by a late response.
		b.ReportMetric(figures.Milliseconds(through.sinceDue.P99), "broker-since-due-p99-ms")
	})
}

// BenchmarkTenTriggers measures deliveries per second with ten matching triggers and with one.
func BenchmarkTenTriggers(b *testing.B) {
	figures.Once(b, func() {
		const many = 10
		one, ten := start(b), start(b)
		toOne, toTen := one.broker(b, 1, 1), ten.broker(b, many, many)
		var ones, tens []float64
		for range rounds {
			ones = append(ones, flowOf(b, one, toOne, 1).events(1))
			tens = append(tens, many*flowOf(b, ten, toTen, many).events(many))
		}
		b.ReportMetric(figures.Median(ones), "one-deliveries/s")
		b.ReportMetric(figures.Median(tens), "ten-deliveries/s")
		b.ReportMetric(figures.Median(tens)/figures.Median(ones), "ten/one")
	})
}

// BenchmarkThousandTriggers measures events per second with a thousand Triggers, of which one matches.
func BenchmarkThousandTriggers(b *testing.B) {
	figures.Once(b, func() {
		one, thousand := start(b), start(b)
		toOne, toThousand := one.broker(b, 1, 1), thousand.broker(b, 1000, 1)
		var ones, thousands []float64
		for range rounds {
			ones = append(ones, flowOf(b, one, toOne, 1).events(1))
			thousands = append(thousands, flowOf(b, thousand, toThousand, 1).events(1))
		}
		b.ReportMetric(figures.Median(ones), "one-events/s")
		b.ReportMetric(figures.Median(thousands), "thousand-events/s")
		b.ReportMetric(100*figures.Median(thousands)/figures.Median(ones), "thousand-%-of-one")
	})
}
