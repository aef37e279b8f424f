package tokens

import (
	"time"

	"golang.org/x/time/rate"
	"k8s.io/utils/lru"
)

// cache holds the entries of recent deliveries. Beyond its size it evicts the least recently used entry of the namespace with the most entries: a
// namespace with many tokens displaces its own, and those of others only while they have more. It is not safe for concurrent use.
type cache struct {
	size, count int
	namespaces  map[string]*namespace
}

// namespace has the entries of a namespace, and bounds its requests.
type namespace struct {
	// entries has an *entry for each Key, without a limit of its own. used is the time of the last delivery.
	entries *lru.Cache
	used    time.Time
	// rate bounds the requests per second, inFlight is the number of requests in flight.
	rate     *rate.Limiter
	inFlight int
}

func newCache(size int) *cache { return &cache{size: size, namespaces: map[string]*namespace{}} }

// namespace returns a namespace, which it adds if necessary.
func (c *cache) namespace(name string) *namespace {
	n := c.namespaces[name]
	if n == nil {
		n = &namespace{entries: lru.New(0), rate: rate.NewLimiter(namespaceRate, namespaceBurst)}
		c.namespaces[name] = n
	}
	return n
}

// get returns the entry of a key, or nil.
func (c *cache) get(key Key) *entry {
	if n := c.namespaces[key.Namespace]; n != nil {
		if found, ok := n.entries.Get(key); ok {
			return found.(*entry)
		}
	}
	return nil
}

// use returns the entry of a key for a delivery, and adds it if necessary.
func (c *cache) use(key Key, now time.Time) *entry {
	n := c.namespace(key.Namespace)
	n.used = now
	if found, ok := n.entries.Get(key); ok {
		return found.(*entry)
	}
	e := &entry{}
	n.entries.Add(key, e)
	if c.count++; c.count > c.size {
		c.evict(now)
	}
	return e
}

// evict removes the namespaces whose tokens have all expired without a delivery, or else an entry of the namespace with the most entries.
func (c *cache) evict(now time.Time) {
	most, held := "", 0
	for name, n := range c.namespaces {
		size := n.entries.Len()
		if now.Sub(n.used) >= Lifetime && n.inFlight == 0 {
			delete(c.namespaces, name)
			c.count -= size
		} else if size > held {
			most, held = name, size
		}
	}
	if c.count > c.size {
		c.namespaces[most].entries.RemoveOldest()
		c.count--
		c.release(most)
	}
}

// release removes a namespace that has neither entries nor requests in flight.
func (c *cache) release(name string) {
	if n := c.namespaces[name]; n != nil && n.entries.Len() == 0 && n.inFlight == 0 {
		delete(c.namespaces, name)
	}
}
