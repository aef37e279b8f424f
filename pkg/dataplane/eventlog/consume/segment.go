package consume

import (
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/layout"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/server"
)

// Segment is a message of the log: records of one queue that were appended at about the same time.
type Segment struct {
	// Records are in the order in which they were appended. They share memory, which is not written again.
	Records [][]byte
	// Queue is the queue of the records.
	Queue string
	// Attempt counts deliveries of the segment from 1, also across restarts.
	Attempt int
	// Pending is the number of segments of the queue that were not delivered yet when this one was.
	Pending uint64
	// Accepted is the time at which the server stored the segment.
	Accepted time.Time

	consumer *Consumer
	sequence uint64
	size     int
	arrived  time.Time
	origin   origin // guarded by consumer.mu: of the latest delivery
	settled  bool   // guarded by consumer.mu
}

// origin is the source of a delivery, which receives its acknowledgement.
type origin struct {
	session *server.Session
	reply   string
}

// send sends an acknowledgement. If it is lost, the segment is redelivered.
func (o origin) send(ack string) { _ = o.session.Conn.Publish(o.reply, []byte(ack)) }

func (o origin) ack() { o.send("+ACK") }

func (o origin) nack(delay time.Duration) {
	if delay <= 0 {
		o.send("-NAK")
		return
	}
	o.send(fmt.Sprintf(`-NAK {"delay": %d}`, delay.Nanoseconds()))
}

// Ack acknowledges the segment, which removes it from the log, and does not wait for that. Only the first call of Ack and
// Nack has an effect.
func (s *Segment) Ack() {
	if origin, ok := s.settle(true); ok {
		s.consumer.ack(origin)
	}
}

// ack sends an acknowledgement, together with others if the server is one of a cluster. An ordered queue waits for it.
func (c *Consumer) ack(o origin) {
	if c.consumers.server.Clustered() && !c.ordered() {
		c.consumers.acks.add(o)
	} else {
		o.ack()
	}
}

// Nack rejects the segment, which is redelivered after a delay, also by another process. It does not wait for that.
func (s *Segment) Nack(delay time.Duration) {
	if origin, ok := s.settle(false); ok {
		origin.nack(delay)
	}
}

// settle removes the segment from the unacknowledged ones, and reports whether it was one of them. An acknowledged one is
// remembered first, so that a redelivery is ignored.
func (s *Segment) settle(acked bool) (origin, bool) {
	c := s.consumer
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.settled {
		return origin{}, false
	}
	s.settled = true
	if acked {
		c.acked.add(s.sequence, s.Accepted)
	}
	delete(c.unacked, s.sequence)
	c.bytes -= s.size
	c.unhold(s.size)
	c.changed.Broadcast()
	return s.origin, true
}

// accept queues a message as a segment to deliver. A redelivery of an unacknowledged segment, because of a slow process or
// a restart of the server, only replaces its origin. A redelivery of an acknowledged one is acknowledged again.
func (c *Consumer) accept(session *server.Session, msg *nats.Msg) {
	origin := origin{session, msg.Reply}
	logger := c.consumers.logger
	meta, err := msg.Metadata()
	if err != nil {
		logger.Error(err, "Failed to read metadata of message", "subject", msg.Subject)
		return
	}
	data, err := layout.Records(msg.Data)
	if err != nil {
		// Another version may be able to read it. The delay keeps it from blocking others.
		logger.Error(err, "Failed to read segment", "stream", c.queue.Stream.ID, "sequence", meta.Sequence.Stream)
		origin.nack(time.Minute)
		return
	}
	s := &Segment{
		Records: data, Queue: c.queue.Name, Attempt: int(meta.NumDelivered), Pending: meta.NumPending, Accepted: meta.Timestamp,
		consumer: c, sequence: meta.Sequence.Stream, size: len(msg.Data), arrived: time.Now(), origin: origin,
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.acked.has(s.sequence, s.Accepted) {
		origin.ack()
		return
	}
	if c.stopped {
		origin.nack(redeliverAfter)
		return
	}
	if known := c.unacked[s.sequence]; known != nil {
		if known.Accepted.Equal(s.Accepted) {
			known.origin = origin
			return
		}
		// A stream in memory reuses sequences after a restart: this is another message.
		known.settled = true
		c.bytes -= known.size
		c.unhold(known.size)
	}
	c.unacked[s.sequence] = s
	c.bytes += s.size
	c.hold(s.size)
	c.pending = s.Pending
	c.undelivered = append(c.undelivered, s)
	c.changed.Broadcast()
}
