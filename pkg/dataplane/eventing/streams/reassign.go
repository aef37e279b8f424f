package streams

import (
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
)

const (
	// atATime is how many streams change hands at a time.
	atATime = 16
	// retry is the time after which the log is asked again for a stream that could not be taken.
	retry = time.Second
	// listTimeout bounds a call of Options.Subscribed.
	listTimeout = 10 * time.Second
	// lookAfter is when the log is looked at again after a change: who had a stream before, and does not know yet that it
	// has not any more, may have left something by then.
	lookAfter = 15 * time.Second
	// watchEvery is how often the log is looked at unasked.
	watchEvery = 30 * time.Second
)

// settleSoon has streams change hands.
func (s *Shards) settleSoon() {
	select {
	case s.turn <- struct{}{}:
	default:
	}
}

// follow has streams change hands until Stop. before are the members of which that was done already.
func (s *Shards) follow(before *membership.Set) {
	for {
		select {
		case <-s.turn:
			before = s.settle(before)
		case <-s.stopping:
			return
		}
	}
}

// settle has streams change hands by the members that there are, and returns those. before are the members by which it
// was done last; nil for none.
func (s *Shards) settle(before *membership.Set) *membership.Set {
	current := s.options.Members.Current()
	gained := func(stream eventing.Key) bool {
		return current.Owns(stream.String()) && before != nil && !before.Owns(stream.String())
	}
	if s.options.Gained != nil && before != nil && before != current {
		s.options.Gained(gained)
	}
	var failed atomic.Bool
	var group errgroup.Group
	group.SetLimit(atATime)
	s.shards.Range(func(key, _ any) bool {
		group.Go(func() error {
			if err := s.turnOver(key.(eventing.Key)); err != nil {
				failed.Store(true)
				klog.FromContext(s.ctx).Info("Trying again to take a stream", "stream", key.(eventing.Key).String(), "reason", err.Error())
			}
			return nil
		})
		return s.ctx.Err() == nil
	})
	group.Wait() //nolint:errcheck // none fails
	if failed.Load() {
		s.options.Clock.AfterFunc(retry, s.settleSoon)
	}
	if before != nil && before != current {
		s.lookAgain(gained)
	}
	return current
}

// turnOver takes or leaves a stream.
func (s *Shards) turnOver(key eventing.Key) error {
	found, ok := s.shards.Load(key)
	if !ok {
		return nil
	}
	sh := found.(*shard)
	sh.changing.Lock()
	defer sh.changing.Unlock()
	switch {
	case sh.forgotten || sh.spec == nil:
		return nil
	case s.Owns(key):
		return s.take(s.ctx, sh)
	default:
		s.release(sh)
		return nil
	}
}

// lookAgain looks at the log after a while for what is left there of streams that were gained, and of those that were
// deleted while they were nobody's.
func (s *Shards) lookAgain(gained func(eventing.Key) bool) {
	s.options.Clock.AfterFunc(lookAfter, func() {
		if s.ctx.Err() != nil {
			return
		}
		logger := klog.FromContext(s.ctx)
		if gained != nil {
			s.refresh(gained)
		}
		if err := s.options.Broker.Prune(s.ctx); err != nil && s.ctx.Err() == nil {
			logger.Info("What the event log has of objects that are gone is deleted later", "reason", err.Error())
			s.lookAgain(nil)
		}
	})
}

// watch looks at the logs of this replica's streams from time to time. An append that was told to have failed may have come
// through all the same, here or at the replica that had the stream before, and nothing tells of that. Each look is one
// question to the log for each stream.
func (s *Shards) watch() {
	for {
		timer := s.options.Clock.NewTimer(watchEvery)
		select {
		case <-s.stopping:
			timer.Stop()
			return
		case <-timer.C():
		}
		s.refresh(s.Owns)
	}
}

// refresh has what is left in the logs of some streams delivered.
func (s *Shards) refresh(which func(eventing.Key) bool) {
	s.shards.Range(func(key, _ any) bool {
		if !which(key.(eventing.Key)) {
			return true
		}
		if err := s.options.Broker.Refresh(s.ctx, key.(eventing.Key)); err != nil && s.ctx.Err() == nil {
			klog.FromContext(s.ctx).Info("Looking for events that are left in the log failed", "reason", err.Error())
		}
		return s.ctx.Err() == nil
	})
}
