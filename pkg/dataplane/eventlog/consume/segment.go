package eventlog

import (
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/layout"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/server"
)

// Frame is a message of the log: records of one queue that were appended at about the same time.
type Frame struct {
	// Records are in the order they were appended. They share memory, which is not written to again.
	Records [][]byte
	// Queue is that of the records.
	Queue string
	// Attempt says how often the frame was handed over, from 1; it is kept over restarts.
	Attempt int
	// Pending is the number of frames of the queue that were not handed over yet when this one was.
	Pending uint64
	// Accepted is when the server stored the frame.
	Accepted time.Time

	consumption *Consumption
	sequence    uint64
	size        int
	arrived     time.Time
	origin      origin // guarded by consumption.mu: of the latest delivery
	settled     bool   // guarded by consumption.mu
}

// origin is where a delivery came from, and takes what becomes of it.
type origin struct {
	session *server.Session
	reply   string
}

// tell sends an acknowledgement. One that does not get through means that the frame comes again.
func (o origin) tell(what string) { _ = o.session.Conn.Publish(o.reply, []byte(what)) }

// nak has the server hand the frame over again after a time.
func (o origin) nak(after time.Duration) {
	if after <= 0 {
		o.tell("-NAK")
		return
	}
	o.tell(fmt.Sprintf(`-NAK {"delay": %d}`, after.Nanoseconds()))
}

// Done removes the frame from the log. It does not wait for that. Only the first call of Done and Again counts.
func (f *Frame) Done() {
	if origin, ok := f.settle(true); ok {
		origin.tell("+ACK")
	}
}

// Again has the frame handed over again after a time, also by another process. It does not wait for that.
func (f *Frame) Again(after time.Duration) {
	if origin, ok := f.settle(false); ok {
		origin.nak(after)
	}
}

// settle takes the frame from those under way, and says whether it was one of them. One that is done is remembered
// first, so that it is not handed over once more.
func (f *Frame) settle(done bool) (origin, bool) {
	c := f.consumption
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.settled {
		return origin{}, false
	}
	f.settled = true
	if done {
		c.stream.acked.add(f.sequence, f.Accepted)
	}
	delete(c.undone, f.sequence)
	c.bytes -= f.size
	c.unhold(f.size)
	c.changed.Broadcast()
	return f.origin, true
}

// take makes a message a frame that waits to be handed over. One that is under way already was only slow, or the
// server was restarted: then its end is told by the new delivery. That of one that was done before is told again.
func (c *Consumption) take(session *server.Session, msg *nats.Msg) {
	origin := origin{session, msg.Reply}
	meta, err := msg.Metadata()
	if err != nil {
		c.stream.log.logger.Error(err, "Message without metadata", "subject", msg.Subject)
		return
	}
	data, err := layout.Records(msg.Data)
	if err != nil {
		// Left where it is for whoever understands it, and out of the others' way for a while.
		c.stream.log.logger.Error(err, "Frame cannot be read", "stream", c.stream.config.ID, "sequence", meta.Sequence.Stream)
		origin.nak(time.Minute)
		return
	}
	f := &Frame{
		Records: data, Queue: c.queue, Attempt: int(meta.NumDelivered), Pending: meta.NumPending, Accepted: meta.Timestamp,
		consumption: c, sequence: meta.Sequence.Stream, size: len(msg.Data), arrived: time.Now(), origin: origin,
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stream.acked.has(f.sequence, f.Accepted) {
		origin.tell("+ACK")
		return
	}
	if c.stopped {
		origin.nak(handBack)
		return
	}
	if known := c.undone[f.sequence]; known != nil {
		if known.Accepted.Equal(f.Accepted) {
			known.origin = origin
			return
		}
		// The number is that of another message now, which a stream in memory has after a restart.
		known.settled = true
		c.bytes -= known.size
		c.unhold(known.size)
	}
	c.undone[f.sequence] = f
	c.bytes += f.size
	c.hold(f.size)
	c.pending = f.Pending
	c.waiting = append(c.waiting, f)
	c.changed.Broadcast()
}
