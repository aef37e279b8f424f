package commit

import (
	"fmt"
	"sync"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/server"
)

// Held bytes are queried every sharesFreshness while records are appended, and every quotaFreshness while a tenant seems to
// exceed its share, but for at most a tenth of the time: a query takes longer the more streams exist, some milliseconds for
// 1,000.
const (
	sharesFreshness = time.Second
	sharesRest      = 9
)

// ErrShareFull wraps ErrFull. It is returned while the streams of one tenant hold their share of the log.
var ErrShareFull = fmt.Errorf("%w for this tenant", server.ErrFull)

// Shares limits the bytes that the streams of each tenant hold together, on disk or in memory.
type Shares struct {
	// Limit is the maximum number of bytes of a tenant.
	Limit int64
	// Held returns the number of bytes that the streams of each tenant hold, and whether it is known.
	Held func() (map[string]int64, bool)

	mu       sync.Mutex
	queried  time.Time // time of the last call of Held
	querying bool
	rest     time.Duration // minimum time until the next call
	tenants  map[string]*share
}

// share is the usage of one tenant.
type share struct {
	// known is the result of the last query, and the bytes reserved since.
	known int64
	// reserved is not written yet.
	reserved int64
}

// reserve counts bytes that a tenant is about to write, until settle is called. If they exceed its share, the error wraps
// ErrShareFull.
func (s *Shares) reserve(tenant string, bytes int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.fits(tenant, bytes) {
		s.refresh(quotaFreshness)
	} else {
		s.refresh(sharesFreshness)
	}
	if !s.fits(tenant, bytes) {
		return fmt.Errorf("%w: %d bytes exceed the limit: %d of %d are held", ErrShareFull, bytes, s.tenants[tenant].known, s.Limit)
	}
	t := s.tenant(tenant)
	t.known += bytes
	t.reserved += bytes
	return nil
}

// tenant returns the usage of a tenant. mu is held.
func (s *Shares) tenant(name string) *share {
	if s.tenants == nil {
		s.tenants = map[string]*share{}
	}
	if s.tenants[name] == nil {
		s.tenants[name] = &share{}
	}
	return s.tenants[name]
}

// fits reports whether a tenant may write so many bytes. One that holds none may write any number.
func (s *Shares) fits(tenant string, bytes int64) bool {
	t := s.tenants[tenant]
	return t == nil || t.known == 0 || t.known+bytes <= s.Limit
}

// settle ends the reservation of bytes that are written, or will not be.
func (s *Shares) settle(tenant string, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tenants[tenant].reserved -= bytes
}

// refresh queries the held bytes unless that was done within freshness. The lock is released meanwhile: others continue
// with the previous result.
func (s *Shares) refresh(freshness time.Duration) {
	now := time.Now()
	if s.querying || now.Sub(s.queried) < max(freshness, s.rest) {
		return
	}
	s.querying, s.queried = true, now
	// Bytes written during the query may count twice, until the next one.
	settled := make(map[string]int64, len(s.tenants))
	for tenant, t := range s.tenants {
		settled[tenant] = t.known - t.reserved
	}
	s.mu.Unlock()
	held, known := s.Held()
	s.mu.Lock()
	s.querying, s.rest = false, sharesRest*time.Since(now)
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
			s.tenant(tenant).known = bytes
		}
	}
}
