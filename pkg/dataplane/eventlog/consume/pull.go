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

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/layout"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/server"
)

const (
	// An external server, or one of a cluster, ends a request after pullFor, and tells every so often until then that it
	// has it. From the single one in this process no message gets lost, so nothing happens while there are no frames.
	pullFor         = 30 * time.Second
	externalBeat    = 5 * time.Second
	clusterBeat     = 2 * time.Second
	embeddedPullFor = time.Hour
	// acquiredPullFor is the time of requests that hold memory.
	acquiredPullFor = 2 * time.Second
	consumerTimeout = 10 * time.Second

	// forgetAfter is how long the server remembers a consumer that nobody pulls for. Each costs something even so, in a
	// cluster that of a log of its own on each server that holds it.
	forgetAfter = 5 * time.Minute

	// News of a request, by status (NATS ADR-13): heartbeat is a sign of life, and expired that its time is over.
	heartbeat, expired = "100", "408"
	// The text of tooSmall tells that the next frame has no room in the request, which ends with that. That of
	// completed follows the last frame of a request.
	tooSmall, completed = "Message Size Exceeds MaxBytes", "Batch Completed"
)

// puller asks for frames of one consumer, request by request. The client library's own way drops what arrives while
// a request is withdrawn, which would then come late.
type puller struct {
	consumption *Consumption
	session     *server.Session
	subject     string // of requests
	inbox       string
	wake        chan struct{} // a request ended

	mu    sync.Mutex
	asked int       // frames the request is still to bring
	got   int       // frames it brought
	ended error     // how it ended before it brought all
	heard time.Time // when anything arrived last
}

// request is the form that JetStream takes requests for messages in.
type request struct {
	Batch     int           `json:"batch"`
	MaxBytes  int           `json:"max_bytes"`
	Expires   time.Duration `json:"expires"`
	Heartbeat time.Duration `json:"idle_heartbeat,omitempty"`
}

var (
	errSilent   = errors.New("the server does not answer")
	errExpired  = errors.New("the request expired")
	errTooSmall = errors.New("the next frame has no room in the request")
)

// pullFrom binds to the queue's consumer, which it creates if there is none, and gets frames until an error.
func (c *Consumption) pullFrom(session *server.Session) error {
	// Requests are for as many frames as there is room for. Those that were given back are not to hold up the others.
	pending, forget := -1, forgetAfter
	if c.options.MaxFrames == 1 {
		// How often a frame was handed over is kept with the consumer.
		pending, forget = 1, 0
	}
	ctx, cancel := context.WithTimeout(c.ctx, consumerTimeout)
	_, err := session.JetStream.CreateOrUpdateConsumer(ctx, c.stream.names.Name(), jetstream.ConsumerConfig{
		Durable:       layout.Consumer(c.queue),
		FilterSubject: c.stream.names.Subject(c.queue),
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       c.stream.log.ackWait(),
		MaxDeliver:    -1,
		MaxAckPending: pending,

		InactiveThreshold: forget,
	})
	cancel()
	if err != nil {
		return fmt.Errorf("create consumer: %w", err)
	}
	p := &puller{
		consumption: c, session: session, wake: make(chan struct{}, 1),
		subject: "$JS.API.CONSUMER.MSG.NEXT." + c.stream.names.Name() + "." + layout.Consumer(c.queue),
		inbox:   session.Conn.NewInbox(),
	}
	sub, err := session.Conn.Subscribe(p.inbox, p.receive)
	if err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	// What was sent already is still received.
	defer func() { _ = sub.Drain() }()
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}

	large := false // the next frame needs more room than there was
	ask := c.next(probeBytes, false)
	for {
		frames, room := c.room()
		if c.ctx.Err() != nil {
			return nil
		}
		bytes := min(ask, room)
		if large && bytes >= c.options.MaxBytes {
			frames, bytes = 1, max(bytes, int(session.Conn.MaxPayload())+layout.Overhead)
		}
		if !c.acquire(bytes) {
			return nil
		}
		got, err := p.pull(frames, bytes)
		tooSmall := errors.Is(err, errTooSmall)
		ask = c.next(bytes, tooSmall)
		large = got == 0 && tooSmall
		switch {
		case large && bytes < room:
			// More is asked for next.
		case large && bytes <= c.options.MaxBytes:
			c.drain(bytes)
		case large, err != nil && !errors.Is(err, errTooSmall):
			return fmt.Errorf("ask for frames: %w", err)
		}
	}
}

// pull makes one request and waits for its end. It returns the number of frames it brought, and why it ended early,
// unless its time was over or the consumption was stopped.
func (p *puller) pull(frames, bytes int) (got int, err error) {
	r := request{Batch: frames, MaxBytes: bytes, Expires: embeddedPullFor}
	if p.consumption.options.Memory != nil && bytes > probeBytes {
		// What waits comes at once, and nothing else is worth holding memory for.
		r.Expires = acquiredPullFor
	}
	var silence <-chan time.Time
	beatEvery := p.consumption.stream.log.beatEvery()
	if !p.session.Local {
		r.Expires = min(r.Expires, pullFor)
		if r.Expires > 2*beatEvery {
			r.Heartbeat = beatEvery
		}
		ticker := time.NewTicker(beatEvery)
		defer ticker.Stop()
		silence = ticker.C
	}
	body, err := json.Marshal(r)
	if err != nil {
		return 0, err
	}
	p.mu.Lock()
	p.asked, p.got, p.ended, p.heard = frames, 0, nil, time.Now()
	p.mu.Unlock()
	if err := p.session.Conn.PublishRequest(p.subject, p.inbox, body); err != nil {
		return 0, err
	}
	for {
		select {
		case <-p.wake:
		case <-silence:
		case <-p.session.Ended():
			return 0, server.ErrEnded
		case <-p.consumption.ctx.Done():
			return 0, nil
		}
		p.mu.Lock()
		asked, got, ended, heard := p.asked, p.got, p.ended, p.heard
		p.mu.Unlock()
		switch {
		case asked <= 0, errors.Is(ended, errExpired):
			return got, nil
		case ended != nil:
			return got, ended
		case silence != nil && time.Since(heard) > 2*beatEvery:
			return got, errSilent
		}
	}
}

func (l *Log) beatEvery() time.Duration {
	if l.server.Clustered() {
		return clusterBeat
	}
	return externalBeat
}

// receive takes a frame, or news of the request.
func (p *puller) receive(msg *nats.Msg) {
	status, text := "", ""
	if len(msg.Data) == 0 {
		status, text = msg.Header.Get("Status"), msg.Header.Get("Description")
	}
	if status == "" {
		p.consumption.take(p.session, msg)
	}
	p.mu.Lock()
	p.heard = time.Now()
	switch {
	case status == "":
		p.asked--
		p.got++
	case status == heartbeat, text == completed:
		// The last frame has ended its request, and what follows it may come when there is another one.
	case status == expired:
		p.ended = errExpired
	case text == tooSmall:
		p.ended = errTooSmall
	default:
		p.ended = fmt.Errorf("the server answers: %s %s", status, text)
	}
	ended := p.asked <= 0 || p.ended != nil
	p.mu.Unlock()
	if ended {
		select {
		case p.wake <- struct{}{}:
		default:
		}
	}
}
