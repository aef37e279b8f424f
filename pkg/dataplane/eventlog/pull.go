package eventlog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// An external server ends a request after pullFor, and tells every beatEvery until then that it has it. From the
	// one in this process no message gets lost, so nothing happens while there are no frames.
	pullFor         = 30 * time.Second
	beatEvery       = 5 * time.Second
	embeddedPullFor = time.Hour
	consumerTimeout = 10 * time.Second
)

// puller asks for frames of one consumer, request by request. The client library's own way drops what arrives while
// a request is withdrawn, which would then come late.
type puller struct {
	consumption *Consumption
	session     *session
	subject     string // of requests
	inbox       string
	wake        chan struct{} // a request ended

	mu     sync.Mutex
	asked  int // frames the request is still to bring
	got    int // frames it brought
	status string
	heard  time.Time // when anything arrived last
}

// request is the form that JetStream takes requests for messages in.
type request struct {
	Batch     int           `json:"batch"`
	MaxBytes  int           `json:"max_bytes"`
	Expires   time.Duration `json:"expires"`
	Heartbeat time.Duration `json:"idle_heartbeat,omitempty"`
}

var errSilent = errors.New("the server does not answer")

// pullFrom binds to the queue's consumer, which it creates if there is none, and gets frames until an error.
func (c *Consumption) pullFrom(session *session) error {
	ctx, cancel := context.WithTimeout(c.ctx, consumerTimeout)
	_, err := session.js.CreateOrUpdateConsumer(ctx, c.stream.name, jetstream.ConsumerConfig{
		Durable:       durable(c.queue),
		FilterSubject: c.stream.subject(c.queue),
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       c.stream.log.ackWait(),
		MaxDeliver:    -1,
		MaxAckPending: c.options.MaxFrames,
	})
	cancel()
	if err != nil {
		return fmt.Errorf("create consumer: %w", err)
	}
	p := &puller{
		consumption: c, session: session, wake: make(chan struct{}, 1),
		subject: "$JS.API.CONSUMER.MSG.NEXT." + c.stream.name + "." + durable(c.queue),
		inbox:   session.nc.NewInbox(),
	}
	sub, err := session.nc.Subscribe(p.inbox, p.receive)
	if err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	// What was sent already is still received.
	defer func() { _ = sub.Drain() }()
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}

	large := false // the next frame needs more room than there was
	for {
		frames, bytes := c.room()
		if c.ctx.Err() != nil {
			return nil
		}
		if large && bytes >= c.options.MaxBytes {
			frames, bytes = 1, max(bytes, int(session.nc.MaxPayload())+headroom)
		}
		got, status, err := p.pull(frames, bytes)
		if err != nil {
			return err
		}
		empty := got == 0 && status == "409"
		if empty && bytes > c.options.MaxBytes {
			return errors.New("the server refuses to send the next frame")
		}
		if large = empty; large {
			c.drain(bytes)
		}
	}
}

// pull makes one request and waits for its end. It returns the number of frames it brought, and the status it ended
// with if it did not bring all.
func (p *puller) pull(frames, bytes int) (got int, status string, err error) {
	r := request{Batch: frames, MaxBytes: bytes, Expires: embeddedPullFor}
	var silence <-chan time.Time
	if p.session.server == nil {
		r.Expires, r.Heartbeat = pullFor, beatEvery
		ticker := time.NewTicker(beatEvery)
		defer ticker.Stop()
		silence = ticker.C
	}
	body, err := json.Marshal(r)
	if err != nil {
		return 0, "", err
	}
	p.mu.Lock()
	p.asked, p.got, p.status, p.heard = frames, 0, "", time.Now()
	p.mu.Unlock()
	if err := p.session.nc.PublishRequest(p.subject, p.inbox, body); err != nil {
		return 0, "", fmt.Errorf("ask for frames: %w", err)
	}
	for {
		select {
		case <-p.wake:
		case <-silence:
		case <-p.session.ended:
			return 0, "", errEnded
		case <-p.consumption.ctx.Done():
			return 0, "", nil
		}
		p.mu.Lock()
		asked, got, status, heard := p.asked, p.got, p.status, p.heard
		p.mu.Unlock()
		switch {
		case status == "503":
			return got, status, fmt.Errorf("ask for frames: %w", nats.ErrNoResponders)
		case asked == 0 || status != "":
			return got, status, nil
		case silence != nil && time.Since(heard) > 2*beatEvery:
			return got, status, errSilent
		}
	}
}

// receive takes a frame, or news of the request.
func (p *puller) receive(msg *nats.Msg) {
	status := ""
	if len(msg.Data) == 0 {
		status = msg.Header.Get("Status")
	}
	if status == "" {
		p.consumption.take(p.session, msg)
	}
	p.mu.Lock()
	p.heard = time.Now()
	switch status {
	case "":
		p.asked--
		p.got++
	case "100": // a heartbeat
	default:
		p.status = status
	}
	ended := p.asked <= 0 || p.status != ""
	p.mu.Unlock()
	if ended {
		select {
		case p.wake <- struct{}{}:
		default:
		}
	}
}
