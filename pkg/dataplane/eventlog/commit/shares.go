package eventlog

import (
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// tenantShare is the part of what the embedded store may take that the streams of one tenant may.
	tenantShare = 2
	// The server is asked for what tenants hold every sharesFreshness while records are appended, and every
	// quotaFreshness while a tenant seems to hold too much, but for at most a tenth of the time: an answer takes longer the more
	// streams there are, some milliseconds for 1,000.
	sharesFreshness = time.Second
	sharesRest      = 9
)

// shares bounds what the streams of each tenant hold in all, on disk or in memory.
type shares struct {
	limit int64
	// held returns how many bytes the streams of each tenant hold, and whether that is known.
	held func() (map[string]int64, bool)

	mu      sync.Mutex
	asked   time.Time // when held was, or is
	asking  bool
	rest    time.Duration // before the next time, at least
	tenants map[string]*share
}

// share is what one tenant holds.
type share struct {
	// known is what the tenant held when the server was asked, and took since.
	known int64
	// underway was taken and is not written yet.
	underway int64
}

// take counts bytes that a tenant is about to write, until written is called. Without room for them, its error wraps
// ErrShareFull.
func (s *shares) take(tenant string, bytes int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.fits(tenant, bytes) {
		s.refresh(quotaFreshness)
	} else {
		s.refresh(sharesFreshness)
	}
	if !s.fits(tenant, bytes) {
		return fmt.Errorf("%w: there is no room for %d bytes besides %d of at most %d", ErrShareFull, bytes, s.tenants[tenant].known, s.limit)
	}
	if s.tenants[tenant] == nil {
		s.tenants[tenant] = &share{}
	}
	s.tenants[tenant].known += bytes
	s.tenants[tenant].underway += bytes
	return nil
}

// fits reports whether a tenant may write so many bytes. One that holds nothing may write any number.
func (s *shares) fits(tenant string, bytes int64) bool {
	t := s.tenants[tenant]
	return t == nil || t.known == 0 || t.known+bytes <= s.limit
}

// written ends what take counted: the bytes are held by now, or will not be written.
func (s *shares) written(tenant string, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tenants[tenant].underway -= bytes
}

// refresh asks what tenants hold unless that was asked within freshness. The lock is released meanwhile: others go on with
// what was known before.
func (s *shares) refresh(freshness time.Duration) {
	now := time.Now()
	if s.asking || now.Sub(s.asked) < max(freshness, s.rest) {
		return
	}
	s.asking, s.asked = true, now
	// What is written while the server is asked may count twice, until the next time.
	settled := make(map[string]int64, len(s.tenants))
	for tenant, t := range s.tenants {
		settled[tenant] = t.known - t.underway
	}
	s.mu.Unlock()
	held, known := s.held()
	s.mu.Lock()
	s.asking, s.rest = false, sharesRest*time.Since(now)
	if !known {
		return
	}
	for tenant, t := range s.tenants {
		t.known += held[tenant] - settled[tenant]
		if t.known == 0 {
			delete(s.tenants, tenant)
		}
	}
	for tenant, bytes := range held {
		if s.tenants[tenant] == nil && bytes > 0 {
			s.tenants[tenant] = &share{known: bytes}
		}
	}
}

// setShares bounds what the tenants of the embedded server hold.
func (l *Log) setShares() {
	size := l.opts.MaxBytes
	if size <= 0 {
		size = l.space.Size()
	}
	l.memoryShares = l.newShares(maxMemory/tenantShare, jetstream.MemoryStorage)
	l.diskShares = l.newShares(max(size/tenantShare, l.opts.MaxStreamBytes), jetstream.FileStorage)
}

func (l *Log) newShares(limit int64, storage jetstream.StorageType) *shares {
	return &shares{limit: limit, held: func() (map[string]int64, bool) { return l.server.TenantUsage(storage) }, tenants: map[string]*share{}}
}

// shares bounds the stream together with others of its tenant, nil if nothing does.
func (s *Stream) shares() *shares {
	switch {
	case s.config.Tenant == "":
		return nil
	case s.config.Memory:
		return s.log.memoryShares
	}
	return s.log.diskShares
}
