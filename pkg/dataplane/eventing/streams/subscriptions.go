package streams

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/ownership"
)

const (
	// listTimeout bounds a call of Options.Subscribed, and listRetry is the time between two for the same membership.
	listTimeout, listRetry = 10 * time.Second, time.Second
)

// errBehind is returned for a stream of this replica while its informers lack a consumer.
var errBehind = errors.New("informers lag behind: unknown consumer")

// ignoreBehind returns nil for errBehind, and err otherwise. The stream is acquired when the consumer is set, or after a delay.
func ignoreBehind(err error) error {
	if errors.Is(err, errBehind) {
		return nil
	}
	return err
}

// subscriptions are the consumers that are subscribed according to their status. The informers of this replica may not have all of them yet.
type subscriptions struct {
	list func(context.Context) ([]eventing.Consumer, error)

	// mu guards the fields below.
	mu sync.Mutex
	// owners are the owners for which byStream was listed; nil if it was not listed.
	owners   *ownership.Owners[eventing.Key]
	listed   time.Time
	byStream map[eventing.Key][]eventing.Consumer
}

// require returns errBehind if a subscribed consumer of a stream is not set. It lists once after each change of owners, for a new partition,
// and again after listRetry while a consumer is missing, because that consumer may have been deleted. The stream's mu is held.
func (s *subscriptions) require(ctx context.Context, st *stream, owners ownership.Owners[eventing.Key]) error {
	if s.list == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owners == nil || !s.owners.Equal(owners) || st.key.Partition > 0 && st.since.After(s.listed) {
		ctx, cancel := context.WithTimeout(ctx, listTimeout)
		defer cancel()
		all, err := s.list(ctx)
		if err != nil {
			return err
		}
		s.owners, s.listed, s.byStream = &owners, time.Now(), map[eventing.Key][]eventing.Consumer{}
		for _, c := range all {
			s.byStream[c.Stream] = append(s.byStream[c.Stream], c)
		}
	}
	for _, c := range s.byStream[st.key.Whole()] {
		if st.consumers[c.Key].UID == c.UID {
			continue
		}
		if time.Since(s.listed) >= listRetry {
			s.owners = nil
		}
		return fmt.Errorf("%w: %s", errBehind, c.Key)
	}
	return nil
}
