package consume

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
	// A server at a URL, or of a cluster, ends a request after pullFor, and sends heartbeats until then. The single server in
	// this process loses no message, so an idle request may last longer.
	pullFor           = 30 * time.Second
	externalHeartbeat = 5 * time.Second
	clusterHeartbeat  = 2 * time.Second
	localPullFor      = time.Hour
	// acquiredPullFor is the duration of requests that hold memory.
	acquiredPullFor = 2 * time.Second
	consumerTimeout = 10 * time.Second

	// smallRequest is the size in bytes of a request that holds no memory: it waits until segments are appended.
	smallRequest = 16 << 10

	// inactiveThreshold is the time for which the server keeps a consumer without requests. Each has a cost, in a cluster a
	// log of its own on each server that holds it.
	inactiveThreshold = 5 * time.Minute

	// Statuses of a request (NATS ADR-13): a heartbeat, and the end of its duration.
	heartbeat, expired = "100", "408"
	// Descriptions of a status: tooSmall ends a request that has no room for the next segment, completed follows the last
	// segment of a request.
	tooSmall, completed = "Message Size Exceeds MaxBytes", "Batch Completed"
)

// puller requests segments of one consumer, one request after the other. It is not the client library's Fetch because that
// drops messages that arrive while a request is withdrawn, which would be redelivered late (TestFetchDropsMessages). The
// library's Consume and Messages send their next request by themselves, before memory for its segments is acquired.
type puller struct {
	consumer *Consumer
	session  *server.Session
	subject  string // of requests
	inbox    string
	wake     chan struct{} // a request ended

	mu        sync.Mutex
	remaining int       // segments that the request has not brought yet
	bytes     int       // that the request may still bring
	got       int       // segments that it brought
	ended     error     // why it ended before it brought all
	heard     time.Time // time of the last message of any kind
}

// request is the form in which JetStream accepts requests for messages.
type request struct {
	Batch     int           `json:"batch"`
	MaxBytes  int           `json:"max_bytes"`
	Expires   time.Duration `json:"expires"`
	Heartbeat time.Duration `json:"idle_heartbeat,omitempty"`
}

var (
	errSilent   = errors.New("the server does not respond")
	errExpired  = errors.New("the request expired")
	errTooSmall = errors.New("the next segment exceeds the size of the request")
)

// create creates the queue's consumer unless it exists.
func (c *Consumer) create(session *server.Session, stream, durable string) error {
	// Requests are for as many segments as have room, so that rejected ones need not block the others.
	maxPending, threshold := -1, inactiveThreshold
	if c.ordered() {
		// The server stores the number of attempts with the consumer.
		maxPending, threshold = 1, 0
	}
	// In a cluster each segment costs a sync of the consumer's log on each server. Without a number of attempts nothing is lost with a log
	// in memory: segments that were not acknowledged are redelivered.
	clustered := c.consumers.server.Clustered()
	inMemory := clustered && !c.ordered()
	ctx, cancel := context.WithTimeout(c.ctx, consumerTimeout)
	defer cancel()
	_, err := session.JetStream.CreateOrUpdateConsumer(ctx, stream, jetstream.ConsumerConfig{
		Durable:       durable,
		FilterSubject: c.queue.Stream.Subject(c.queue.Name),
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       c.consumers.ackWait(),
		MaxDeliver:    -1,
		MaxAckPending: maxPending,
		MemoryStorage: inMemory,

		InactiveThreshold: threshold,
	})
	if err == nil || !clustered || c.ctx.Err() != nil {
		return err
	}
	// Its log is on disk, as earlier versions stored it, or in memory although the queue is ordered since. Or most of its servers
	// restarted at the same time: they elect no leader without the others. It is created again in the next attempt.
	ctx, cancel = context.WithTimeout(c.ctx, consumerTimeout)
	defer cancel()
	if !inMemory {
		existing, getErr := session.JetStream.Consumer(ctx, stream, durable)
		if getErr != nil || !existing.CachedInfo().Config.MemoryStorage {
			return err
		}
	}
	return errors.Join(err, session.JetStream.DeleteConsumer(ctx, stream, durable))
}

// pullFrom creates the queue's consumer unless it exists, and requests segments until an error.
func (c *Consumer) pullFrom(session *server.Session) error {
	stream, durable := c.queue.Stream.Name(), layout.Consumer(c.queue.Name)
	if err := c.create(session, stream, durable); err != nil {
		return fmt.Errorf("create consumer: %w", err)
	}
	p := &puller{
		consumer: c, session: session, wake: make(chan struct{}, 1),
		subject: "$JS.API.CONSUMER.MSG.NEXT." + stream + "." + durable, inbox: session.Conn.NewInbox(),
	}
	sub, err := session.Conn.Subscribe(p.inbox, p.receive)
	if err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	// Messages in transit are still received.
	defer func() { _ = sub.Drain() }()
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}

	large := false // the next segment exceeds the last request
	next := c.nextRequest(smallRequest, false)
	for {
		segments, room := c.room()
		if c.ctx.Err() != nil {
			return nil
		}
		bytes := min(next, room)
		if large && bytes >= c.options.MaxBytes {
			segments, bytes = 1, max(bytes, int(session.Conn.MaxPayload())+layout.Overhead)
		}
		if !c.acquire(bytes) {
			return nil
		}
		got, err := p.pull(segments, bytes)
		tooSmall := errors.Is(err, errTooSmall)
		next = c.nextRequest(bytes, tooSmall)
		large = got == 0 && tooSmall
		switch {
		case large && bytes < room:
			// The next request is larger.
		case large && bytes <= c.options.MaxBytes:
			c.waitForRoom(bytes)
		case large, err != nil && !errors.Is(err, errTooSmall):
			return fmt.Errorf("request segments: %w", err)
		}
	}
}

// pull makes one request and waits for its end. It returns the number of segments, and the reason why the request ended
// early, unless it expired or the consumer was stopped.
func (p *puller) pull(segments, bytes int) (got int, err error) {
	r := request{Batch: segments, MaxBytes: bytes, Expires: localPullFor}
	if p.consumer.options.Memory != nil && bytes > smallRequest {
		// Waiting segments arrive immediately; memory is not held to wait for others.
		r.Expires = acquiredPullFor
	}
	var silence <-chan time.Time
	beat := externalHeartbeat
	if p.consumer.consumers.server.Clustered() {
		beat = clusterHeartbeat
	}
	if !p.session.Local {
		r.Expires = min(r.Expires, pullFor)
		if r.Expires > 2*beat {
			r.Heartbeat = beat
		}
		ticker := time.NewTicker(beat)
		defer ticker.Stop()
		silence = ticker.C
	}
	body, err := json.Marshal(r)
	if err != nil {
		return 0, err
	}
	p.mu.Lock()
	p.remaining, p.bytes, p.got, p.ended, p.heard = segments, bytes, 0, nil, time.Now()
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
		case <-p.consumer.ctx.Done():
			return 0, nil
		}
		p.mu.Lock()
		remaining, got, ended, heard := p.remaining, p.got, p.ended, p.heard
		p.mu.Unlock()
		switch {
		case remaining <= 0, errors.Is(ended, errExpired):
			return got, nil
		case ended != nil:
			return got, ended
		case silence != nil && time.Since(heard) > 2*beat:
			return got, errSilent
		}
	}
}

// receive handles a segment, or a status of the request.
func (p *puller) receive(msg *nats.Msg) {
	status, description := "", ""
	if len(msg.Data) == 0 {
		status, description = msg.Header.Get("Status"), msg.Header.Get("Description")
	}
	if status == "" {
		p.consumer.accept(p.session, msg)
	}
	p.mu.Lock()
	p.heard = time.Now()
	switch {
	case status == "":
		p.remaining--
		p.got++
		// A request whose bytes are used up exactly ends without a status.
		if p.bytes -= msg.Size(); p.bytes <= 0 {
			p.remaining = 0
		}
	case status == heartbeat, description == completed:
		// The last segment ended its request, and this may arrive during the next one.
	case status == expired:
		p.ended = errExpired
	case description == tooSmall:
		p.ended = errTooSmall
	default:
		p.ended = fmt.Errorf("the server responded: %s %s", status, description)
	}
	ended := p.remaining <= 0 || p.ended != nil
	p.mu.Unlock()
	if ended {
		select {
		case p.wake <- struct{}{}:
		default:
		}
	}
}
