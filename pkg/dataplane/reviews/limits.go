package reviews

import (
	"golang.org/x/time/rate"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/clock"
)

const (
	// The rates of reviews, per second, and their bursts: of unknown callers of one namespace, of all unknown callers, and of known
	// ones. Once half of the burst of known callers is used, each namespace is limited to its share.
	namespaceRate, namespaceBurst = 50, 100
	unknownRate, unknownBurst     = 200, 400
	knownRate, knownBurst         = 400, 1600
	shareRate, shareBurst         = 100, 200
	// maxInFlight bounds the concurrent reviews of each of unknown and known callers.
	maxInFlight = 64
	// maxNamespaces bounds the limiters of namespaces, which are renewed after rememberedFor.
	maxNamespaces = 4096
)

// limits bound the reviews. Callers without a previously accepted token have separate limits, so that they cannot delay the reviews
// of known callers. Known callers may be hostile too, and obtain any number of valid tokens for Services of their own namespace:
// half of the burst, and the rate beyond their share, is reserved for other namespaces.
type limits struct {
	clock          clock.Clock
	namespaces     *utilcache.LRUExpireCache
	unknown, known limit
}

// limit bounds the rate and the number of concurrent reviews.
type limit struct {
	rate     *rate.Limiter
	inFlight chan struct{}
}

func newLimits(clock clock.Clock) *limits {
	return &limits{
		clock: clock, namespaces: utilcache.NewLRUExpireCacheWithClock(maxNamespaces, clock),
		unknown: limit{rate.NewLimiter(unknownRate, unknownBurst), make(chan struct{}, maxInFlight)},
		known:   limit{rate.NewLimiter(knownRate, knownBurst), make(chan struct{}, maxInFlight)},
	}
}

// admit reports whether another review for targets in a namespace may start. If so, release must be called after it.
func (l *limits) admit(namespace string, known bool) (release func(), ok bool) {
	limit, now := &l.known, l.clock.Now()
	if !known {
		limit = &l.unknown
		if !l.namespace("unknown/"+namespace, namespaceRate, namespaceBurst).AllowN(now, 1) {
			return nil, false
		}
	} else if !l.namespace("known/"+namespace, shareRate, shareBurst).AllowN(now, 1) && limit.rate.TokensAt(now) <= knownBurst/2 {
		return nil, false
	}
	select {
	case limit.inFlight <- struct{}{}:
	default:
		return nil, false
	}
	release = func() { <-limit.inFlight }
	if !limit.rate.AllowN(now, 1) {
		release()
		return nil, false
	}
	return release, true
}

// namespace returns a limiter of a namespace. Concurrent first calls may return different limiters.
func (l *limits) namespace(name string, perSecond rate.Limit, burst int) *rate.Limiter {
	if found, ok := l.namespaces.Get(name); ok {
		return found.(*rate.Limiter)
	}
	limiter := rate.NewLimiter(perSecond, burst)
	l.namespaces.Add(name, limiter, rememberedFor)
	return limiter
}
