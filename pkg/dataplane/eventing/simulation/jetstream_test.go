package simulation

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// This file models the storage and the deliveries of JetStream, as far as the event log uses them: streams with work queue
// retention that reject what exceeds their limit, and pull consumers with explicit acknowledgements. It has no locks and no
// goroutines.

// Codes of JetStream's errors.
const (
	streamNotFound   = 10059
	consumerNotFound = 10014
	storeFailed      = 10077
)

// failure is an error of JetStream's API.
type failure struct {
	Code        int    `json:"code"`
	ErrorCode   int    `json:"err_code"`
	Description string `json:"description"`
}

var (
	errNoStream   = &failure{404, streamNotFound, "stream not found"}
	errNoConsumer = &failure{404, consumerNotFound, "consumer not found"}
	errFull       = &failure{503, storeFailed, "maximum bytes exceeded"}
	errDisk       = &failure{503, storeFailed, "write error"}
)

type message struct {
	sequence uint64
	subject  string
	header   string
	data     []byte
	stored   time.Time
}

// size is the size of a message in a file store.
func (m *message) size() int64 {
	size := 22 + len(m.subject) + len(m.data) + 8
	if m.header != "" {
		size += 4 + len(m.header)
	}
	return int64(size)
}

type storedStream struct {
	config  jetstream.StreamConfig
	created time.Time
	// messages are in the order of their sequences, last is the sequence of the newest one, bytes their size.
	messages  []*message
	last      uint64
	bytes     int64
	consumers map[string]*storedConsumer
}

// store appends messages, all or none.
func (s *storedStream) store(now time.Time, all ...*message) *failure {
	var bytes int64
	for _, m := range all {
		bytes += m.size()
	}
	if s.config.MaxBytes > 0 && s.bytes+bytes > s.config.MaxBytes {
		return errFull
	}
	for _, m := range all {
		s.last++
		m.sequence, m.stored = s.last, now
		s.messages = append(s.messages, m)
	}
	s.bytes += bytes
	return nil
}

func (s *storedStream) find(sequence uint64) (int, bool) {
	return slices.BinarySearchFunc(s.messages, sequence, func(m *message, sequence uint64) int { return int(m.sequence) - int(sequence) })
}

// remove removes an acknowledged message.
func (s *storedStream) remove(sequence uint64) {
	if i, found := s.find(sequence); found {
		s.bytes -= s.messages[i].size()
		s.messages = slices.Delete(s.messages, i, i+1)
	}
}

// purge removes and returns the messages of a subject, or all.
func (s *storedStream) purge(subject string) (purged []*message) {
	for _, m := range slices.Clone(s.messages) {
		if subject == "" || m.subject == subject {
			s.remove(m.sequence)
			purged = append(purged, m)
			for _, c := range s.consumers {
				c.settle(m.sequence)
			}
		}
	}
	return purged
}

// subjects counts messages by subject.
func (s *storedStream) subjects() map[string]uint64 {
	counts := map[string]uint64{}
	for _, m := range s.messages {
		counts[m.subject]++
	}
	return counts
}

type storedConsumer struct {
	stream *storedStream
	config jetstream.ConsumerConfig
	// next is the sequence from which messages were not delivered yet, deliveries counts all.
	next, deliveries uint64
	// pending are the delivered messages that were not acknowledged, with the time at which each is redelivered. counts are
	// the numbers of their deliveries.
	pending map[uint64]time.Time
	counts  map[uint64]uint64
	// redeliver are the messages to be redelivered, in that order.
	redeliver []uint64
	requests  []*pull
	// used is the time of the last request.
	used time.Time
}

// pull is a request for messages.
type pull struct {
	reply           string
	messages, bytes int
	expires         time.Time
	heartbeat       time.Duration
	heard           time.Time
	unlimited       bool
}

// delivered is a message, or the status of a request, to be sent.
type delivered struct {
	to, reply string
	message   *message
	// status is "" for a message.
	status string
}

func newStoredStream(config jetstream.StreamConfig, now time.Time) *storedStream {
	return &storedStream{config: config, created: now, consumers: map[string]*storedConsumer{}}
}

// configure creates a consumer, or changes one.
func (s *storedStream) configure(config jetstream.ConsumerConfig, now time.Time) *storedConsumer {
	c := s.consumers[config.Durable]
	if c == nil || c.inactive(now) {
		c = &storedConsumer{stream: s, next: 1, pending: map[uint64]time.Time{}, counts: map[uint64]uint64{}, used: now}
		s.consumers[config.Durable] = c
	}
	c.config = config
	return c
}

// inactive reports whether the consumer was deleted because it had no requests.
func (c *storedConsumer) inactive(now time.Time) bool {
	return c.config.InactiveThreshold > 0 && len(c.requests) == 0 && now.Sub(c.used) > c.config.InactiveThreshold
}

// request adds a request.
func (c *storedConsumer) request(reply string, data []byte, now time.Time) {
	var r struct {
		Batch         int           `json:"batch"`
		MaxBytes      int           `json:"max_bytes"`
		Expires       time.Duration `json:"expires"`
		IdleHeartbeat time.Duration `json:"idle_heartbeat"`
	}
	if err := json.Unmarshal(data, &r); err != nil {
		panic(err)
	}
	c.used = now
	c.requests = append(c.requests, &pull{
		reply: reply, messages: r.Batch, bytes: r.MaxBytes, unlimited: r.MaxBytes == 0, expires: now.Add(r.Expires), heartbeat: r.IdleHeartbeat, heard: now,
	})
}

// behind returns the number of messages that were not delivered yet.
func (c *storedConsumer) behind() (n uint64) {
	first, _ := c.stream.find(c.next)
	for _, m := range c.stream.messages[first:] {
		if m.subject == c.config.FilterSubject {
			n++
		}
	}
	return n
}

// peek returns the message to be delivered next, or nil.
func (c *storedConsumer) peek() (m *message, redelivered bool) {
	for len(c.redeliver) > 0 {
		if i, found := c.stream.find(c.redeliver[0]); found {
			return c.stream.messages[i], true
		}
		c.settle(c.redeliver[0])
	}
	if limit := c.config.MaxAckPending; limit > 0 && len(c.pending) >= limit {
		return nil, false
	}
	first, _ := c.stream.find(c.next)
	for _, m := range c.stream.messages[first:] {
		if m.subject == c.config.FilterSubject {
			return m, false
		}
	}
	return nil, false
}

// deliver returns the messages and statuses to be sent now.
func (c *storedConsumer) deliver(now time.Time) (all []delivered) {
	c.expire(now)
	for len(c.requests) > 0 {
		m, redelivered := c.peek()
		if m == nil {
			break
		}
		r := c.requests[0]
		c.requests = c.requests[1:]
		subject := fmt.Sprintf("$JS.ACK.%s.%s.%d.%d.%d.%d.", c.stream.config.Name, c.config.Durable, c.counts[m.sequence]+1, m.sequence, c.deliveries+1, m.stored.UnixNano())
		behind := c.behind()
		if !redelivered {
			behind--
		}
		subject += fmt.Sprint(behind)
		if size := len(m.subject) + len(subject) + len(m.header) + len(m.data); !r.unlimited && size > r.bytes {
			all = append(all, delivered{to: r.reply, status: "409 Message Size Exceeds MaxBytes"})
			c.used = now
			continue
		} else if r.bytes -= size; r.bytes == 0 && !r.unlimited {
			r.messages = 1
		}
		if redelivered {
			c.redeliver = c.redeliver[1:]
		} else {
			c.next = m.sequence + 1
		}
		c.deliveries++
		c.counts[m.sequence]++
		c.pending[m.sequence] = now.Add(c.config.AckWait)
		r.heard, c.used = now, now
		if r.messages--; r.messages > 0 {
			c.requests = append(c.requests, r)
		}
		all = append(all, delivered{to: r.reply, reply: subject, message: m})
	}
	return append(all, c.end(now)...)
}

// expire queues the messages to be redelivered whose time has come.
func (c *storedConsumer) expire(now time.Time) {
	all := slices.SortedFunc(maps.Keys(c.pending), func(a, b uint64) int {
		return cmp.Or(c.pending[a].Compare(c.pending[b]), cmp.Compare(a, b))
	})
	for _, sequence := range all {
		if !c.pending[sequence].After(now) && !slices.Contains(c.redeliver, sequence) {
			c.redeliver = append(c.redeliver, sequence)
		}
	}
}

// end ends the requests that expired, and sends heartbeats to others.
func (c *storedConsumer) end(now time.Time) (all []delivered) {
	kept := c.requests[:0]
	for _, r := range c.requests {
		if !r.expires.After(now) {
			all = append(all, delivered{to: r.reply, status: "408 Request Timeout"})
			c.used = now
			continue
		}
		kept = append(kept, r)
		if r.heartbeat > 0 && !r.heard.Add(r.heartbeat).After(now) {
			r.heard = now
			all = append(all, delivered{to: r.reply, status: "100 Idle Heartbeat"})
		}
	}
	c.requests = kept
	return all
}

// wake returns the next time at which deliver has an effect without a new message or request, or zero.
func (c *storedConsumer) wake() (at time.Time) {
	earlier := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	for sequence, due := range c.pending {
		if len(c.requests) > 0 && !slices.Contains(c.redeliver, sequence) {
			earlier(due)
		}
	}
	for _, r := range c.requests {
		earlier(r.expires)
		if r.heartbeat > 0 {
			earlier(r.heard.Add(r.heartbeat))
		}
	}
	return at
}

// settle removes a delivered message from pending.
func (c *storedConsumer) settle(sequence uint64) {
	delete(c.pending, sequence)
	delete(c.counts, sequence)
	c.redeliver = slices.DeleteFunc(c.redeliver, func(s uint64) bool { return s == sequence })
}

// acknowledge handles an acknowledgement of any kind.
func (c *storedConsumer) acknowledge(sequence uint64, data string, now time.Time) {
	if sequence >= c.next {
		return
	}
	c.expire(now)
	_, pending := c.pending[sequence]
	switch delay, _ := strings.CutPrefix(data, "-NAK"); {
	case data == "+ACK":
		c.settle(sequence)
		c.stream.remove(sequence)
	case data == "+WPI" && pending:
		c.pending[sequence] = now.Add(c.config.AckWait)
	case data == "-NAK" && pending:
		if !slices.Contains(c.redeliver, sequence) {
			c.redeliver = append(c.redeliver, sequence)
		}
	case delay != data && pending:
		var o struct {
			Delay time.Duration `json:"delay"`
		}
		if err := json.Unmarshal([]byte(delay), &o); err != nil {
			panic(err)
		}
		c.redeliver = slices.DeleteFunc(c.redeliver, func(s uint64) bool { return s == sequence })
		c.pending[sequence] = now.Add(o.Delay)
	}
}
