package streams

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// catalog has all streams and consumers, regardless of their owner. It may be used concurrently.
type catalog struct {
	// streams has a *stream for each partition of a stream that was set or has consumers.
	streams sync.Map

	// mu guards consumers: the stream of each consumer, without partition.
	mu        sync.Mutex
	consumers map[eventing.Key]eventing.Key
}

// stream is a partition of a stream with its consumers.
type stream struct {
	key eventing.Key
	// exists is true once the stream was set, and false while only its consumers are known.
	exists atomic.Bool
	// partitions is the number of partitions that accept events, of a stream that exists. Only the first partition has it.
	partitions atomic.Int32
	// turn chooses the partition of the next events, share is the share of this replica. Only the first partition has both.
	turn  atomic.Uint32
	share atomic.Pointer[share]
	// gate is open while this replica accepts events.
	gate *gate

	// mu is held while the stream changes or is handed over. It guards the fields below. The mu of the first partition is locked first.
	mu        sync.Mutex
	spec      *eventing.Stream
	consumers map[eventing.Key]eventing.Consumer
	// served is true while the broker serves the stream.
	served bool
	// since is the time at which the partition was set first.
	since time.Time
	// obsolete is true once the stream was deleted from the catalog.
	obsolete bool
}

// count returns the number of partitions of a stream by its first one, whose mu is held, whether or not all could be set.
func (st *stream) count() int {
	n := max(1, int(st.partitions.Load()))
	if st.spec != nil {
		n = max(n, st.spec.Partitions)
	}
	return n
}

// find returns a stream, or nil.
func (c *catalog) find(key eventing.Key) *stream {
	if found, ok := c.streams.Load(key); ok {
		return found.(*stream)
	}
	return nil
}

// lock returns a stream, which may be new, with mu held.
func (c *catalog) lock(key eventing.Key) *stream {
	for {
		st := c.find(key)
		if st == nil {
			found, _ := c.streams.LoadOrStore(key, &stream{key: key, consumers: map[eventing.Key]eventing.Consumer{}, gate: newGate()})
			st = found.(*stream)
		}
		st.mu.Lock()
		if !st.obsolete {
			return st
		}
		st.mu.Unlock()
	}
}

// forget deletes a stream that does not exist and has no consumers. Its mu is held.
func (c *catalog) forget(st *stream) {
	if st.spec == nil && len(st.consumers) == 0 && !st.served {
		st.obsolete = true
		c.streams.CompareAndDelete(st.key, st)
	}
}

// each calls do with each stream until it returns false.
func (c *catalog) each(do func(*stream) bool) {
	c.streams.Range(func(_, st any) bool { return do(st.(*stream)) })
}

// streamOf returns the stream of a consumer.
func (c *catalog) streamOf(consumer eventing.Key) (key eventing.Key, found bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key, found = c.consumers[consumer]
	return key, found
}

// setConsumer adds or replaces a consumer of a partition whose mu is held.
func (c *catalog) setConsumer(st *stream, config eventing.Consumer) {
	config.Stream = st.key
	st.consumers[config.Key] = config
	c.mu.Lock()
	defer c.mu.Unlock()
	c.consumers[config.Key] = st.key.Whole()
}

// removeConsumer removes a consumer of a partition whose mu is held. The first partition is the last.
func (c *catalog) removeConsumer(st *stream, consumer eventing.Key) {
	delete(st.consumers, consumer)
	if st.key.Partition > 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.consumers, consumer)
}

// gate is open while the events of a stream are accepted.
type gate struct {
	// mu is held, for reading, while events are accepted. It guards open, and opened, which is closed once the gate is open.
	mu     sync.RWMutex
	open   bool
	opened chan struct{}
}

func newGate() *gate { return &gate{opened: make(chan struct{})} }

// pass calls do while the gate is open. If it is not, it returns a channel that is closed once it is.
func (g *gate) pass(do func() error) (passed bool, opened <-chan struct{}, err error) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if !g.open {
		return false, g.opened, nil
	}
	return true, nil, do()
}

// set opens or closes the gate. When set has closed the gate, no pass is running.
func (g *gate) set(open bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if open == g.open {
		return
	}
	if g.open = open; open {
		close(g.opened)
	} else {
		g.opened = make(chan struct{})
	}
}
