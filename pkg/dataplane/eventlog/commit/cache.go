package commit

import (
	"os"
	"sync"
	"time"
)

const (
	// cacheTime is the time for which the embedded server keeps a message file in memory after the last write to it, if it was read before
	// the next file was begun: its option CacheExpire, which is not configurable.
	cacheTime = 10 * time.Second
	// cacheStep is the number of bytes written after which cached bytes are estimated again, cacheInterval is the longest time between two
	// estimates while some are cached. Streams that write less than cacheStep within cacheTime are ignored.
	cacheStep     = 1 << 20
	cacheInterval = time.Second
)

// cache estimates how many bytes of a stream the embedded server has in memory: the sizes of the message files that were written to
// within cacheTime. They grow with the rate of appends. Files whose segments are all acknowledged do not exist any more, so that streams
// without retries are as small as one file.
type cache struct {
	dir string
	// report is called with changes of the estimate; nil for none.
	report func(bytes int64)

	// mu guards the fields below.
	mu sync.Mutex
	// unseen is the number of bytes written since the last estimate, since the time of the first of them.
	unseen int
	since  time.Time
	// bytes is the last estimate.
	bytes int64
	// oldest is the number of a file before which none was written to within cacheTime.
	oldest int
	// next makes the next estimate.
	next *time.Timer
}

// wrote counts bytes that were written.
func (c *cache) wrote(bytes int) {
	if c.report == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); c.unseen == 0 || now.Sub(c.since) > cacheTime {
		c.unseen, c.since = 0, now
	}
	if c.unseen += bytes; c.unseen >= cacheStep {
		c.estimate()
	}
}

// estimate reports the change since the last estimate. mu is held.
func (c *cache) estimate() {
	c.unseen = 0
	bytes := c.size()
	if bytes != c.bytes {
		c.report(bytes - c.bytes)
		c.bytes = bytes
	}
	switch {
	case bytes == 0:
	case c.next == nil:
		c.next = time.AfterFunc(cacheInterval, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.estimate()
		})
	default:
		c.next.Reset(cacheInterval)
	}
}

// size returns the size of the files that were written to within cacheTime. A directory that cannot be read has none: it was deleted with its
// stream. mu is held.
func (c *cache) size() (bytes int64) {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		c.oldest = 0
		return 0
	}
	now, newest, oldest := time.Now(), 0, 0
	for _, entry := range entries {
		number := numberOf(entry)
		newest = max(newest, number)
		if number < c.oldest {
			continue
		}
		info, err := entry.Info()
		if err != nil || now.Sub(info.ModTime()) > cacheTime {
			continue
		}
		bytes += info.Size()
		if oldest == 0 || number < oldest {
			oldest = number
		}
	}
	switch {
	case newest < c.oldest:
		// The stream was deleted and created again.
		c.oldest = 0
	case oldest > 0:
		c.oldest = oldest
	default:
		c.oldest = newest
	}
	return bytes
}
