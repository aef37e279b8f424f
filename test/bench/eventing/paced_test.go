package eventing

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// paced posts events at a steady rate, independent of earlier responses, and returns the response times.
func paced(b *testing.B, address, run string, rate float64, duration time.Duration) []time.Duration {
	b.Helper()
	u, err := url.Parse(address)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(b.Context())
	defer cancel(nil)
	interval := time.Duration(connections * float64(time.Second) / rate)
	count := int(duration / interval)
	// All connections are open by then.
	begin := time.Now().Add(100 * time.Millisecond)
	answers := make([][]time.Duration, connections)
	var running sync.WaitGroup
	for i := range connections {
		running.Go(func() {
			p := &pacer{target: u, run: run, first: begin.Add(interval * time.Duration(i) / connections), interval: interval}
			var err error
			if answers[i], err = p.post(ctx, i, count); err != nil {
				cancel(err)
			}
		})
	}
	running.Wait()
	if err := context.Cause(ctx); err != nil {
		b.Fatal(err)
	}
	return slices.Concat(answers...)
}

// pacer posts events over one connection.
type pacer struct {
	target   *url.URL
	run      string
	first    time.Time
	interval time.Duration
}

// post posts count events, each at its time, and returns the response times; number is the number of the connection.
func (p *pacer) post(ctx context.Context, number, count int) ([]time.Duration, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.target.Host)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	reader := bufio.NewReader(conn)
	data := `{"data":"` + strings.Repeat("x", 1024-11) + `"}`
	head := "POST " + p.target.RequestURI() + " HTTP/1.1\r\nHost: " + p.target.Host +
		"\r\nContent-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(data)) +
		"\r\nCe-Specversion: 1.0\r\nCe-Source: /bench\r\nCe-Type: " + eventType + "\r\nCe-Id: " + p.run + "-"
	var request bytes.Buffer
	answers := make([]time.Duration, 0, count)
	for i := range count {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		due := p.first.Add(time.Duration(i) * p.interval)
		//nolint:forbidigo // The load generator's clock.
		time.Sleep(time.Until(due))
		request.Reset()
		sent := time.Now()
		fmt.Fprintf(&request, "%s%d\r\n%s: %d\r\n%s: %d\r\n\r\n%s",
			head, i*connections+number, dueHeader, due.UnixNano(), sentHeader, sent.UnixNano(), data)
		if _, err := conn.Write(request.Bytes()); err != nil {
			return nil, err
		}
		response, err := http.ReadResponse(reader, nil)
		if err != nil {
			return nil, err
		}
		_, err = io.Copy(io.Discard, response.Body)
		response.Body.Close()
		if err != nil {
			return nil, err
		}
		if response.StatusCode != http.StatusAccepted {
			return nil, fmt.Errorf("the answer to an event is %s", response.Status)
		}
		answers = append(answers, time.Since(sent))
	}
	return answers, nil
}

// latencies are the latencies of events at a steady rate.
type latencies struct {
	// toAnswer is the time from sending to the response, toSubscriber from sending until the first subscriber has received the
	// event, sinceDue from the scheduled time of sending until then.
	toAnswer, toSubscriber, sinceDue percentiles
}

// latenciesAt measures the latencies to the first subscriber at a steady rate.
func latenciesAt(b *testing.B, address string, rate float64) latencies {
	b.Helper()
	subscribers.drained(b, 1, int64(len(paced(b, address, subscribers.begin(b), rate, warmUp))))
	answers := paced(b, address, subscribers.begin(b), rate, window)
	received := subscribers.drained(b, 1, int64(len(answers)))
	return latencies{toAnswer: percentilesOf(answers), toSubscriber: received.SinceSent, sinceDue: received.SinceDue}
}
