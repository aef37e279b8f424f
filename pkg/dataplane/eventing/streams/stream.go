package streams

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
)

// shard is a stream with its consumers, here or elsewhere.
type shard struct {
	key eventing.Key
	// known tells that there is the stream, besides consumers of it.
	known atomic.Bool

	// changing is held while the shard changes, or changes hands. It guards what follows.
	changing  sync.Mutex
	spec      *eventing.Stream
	consumers map[eventing.Key]eventing.Consumer
	// taken tells that the broker has the stream, forgotten that another shard is to be used.
	taken, forgotten bool

	// gate is held, for reading, while events are accepted. It guards open, which tells that they are, and opened, which is
	// closed once they are.
	gate   sync.RWMutex
	open   bool
	opened chan struct{}
}

// lock returns the shard of a stream, which may be new, with changing held.
func (s *Shards) lock(key eventing.Key) *shard {
	for {
		found, ok := s.shards.Load(key)
		if !ok {
			found, _ = s.shards.LoadOrStore(key, &shard{key: key, consumers: map[eventing.Key]eventing.Consumer{}, opened: make(chan struct{})})
		}
		sh := found.(*shard)
		sh.changing.Lock()
		if !sh.forgotten {
			return sh
		}
		sh.changing.Unlock()
	}
}

// forget lets go of a shard of which nothing is known any more. changing is held, as in what follows.
func (s *Shards) forget(sh *shard) {
	if sh.spec == nil && len(sh.consumers) == 0 && !sh.taken {
		sh.forgotten = true
		s.shards.CompareAndDelete(sh.key, sh)
	}
}

// accept does something while events are accepted. If they are not, it returns what is closed once they are.
func (sh *shard) accept(do func() error) (done bool, opened <-chan struct{}, err error) {
	sh.gate.RLock()
	defer sh.gate.RUnlock()
	if !sh.open {
		return false, sh.opened, nil
	}
	return true, nil, do()
}

// setOpen has events accepted or not. It returns when none are being accepted as before.
func (sh *shard) setOpen(open bool) {
	sh.gate.Lock()
	defer sh.gate.Unlock()
	if open == sh.open {
		return
	}
	if sh.open = open; open {
		close(sh.opened)
	} else {
		sh.opened = make(chan struct{})
	}
}

// take has the broker serve a stream that belongs to this replica, with all its consumers. Events are accepted from then
// on. Consumers without a stream have nothing served yet. It returns errBehind while a consumer is missing.
func (s *Shards) take(ctx context.Context, sh *shard) error {
	current := s.options.Members.Current()
	if sh.taken || !current.Owns(sh.key.String()) {
		return nil
	}
	if sh.spec == nil {
		return errNotReady(sh.key)
	}
	if err := s.awaited(ctx, sh, current); err != nil {
		return err
	}
	consumers := make([]eventing.Consumer, 0, len(sh.consumers))
	for _, c := range sh.consumers {
		if c.StreamUID == sh.spec.UID {
			consumers = append(consumers, c)
		}
	}
	taken, err := s.options.Broker.TakeStream(ctx, *sh.spec, consumers)
	if !taken {
		return err
	}
	if err != nil {
		// Their own status says so.
		klog.FromContext(ctx).V(2).Info("Some consumers cannot be set", "stream", sh.key.String(), "reason", err.Error())
	}
	sh.taken = true
	sh.setOpen(true)
	return nil
}

// awaited returns errBehind if Options.Subscribed lists a consumer of the shard that is not set. It calls Options.Subscribed
// once after each change of members, and again after retry while a consumer is missing: it may have been deleted.
func (s *Shards) awaited(ctx context.Context, sh *shard, current *membership.Set) error {
	if s.options.Subscribed == nil {
		return nil
	}
	s.listing.Lock()
	defer s.listing.Unlock()
	if s.members != current {
		ctx, cancel := context.WithTimeout(ctx, listTimeout)
		defer cancel()
		all, err := s.options.Subscribed(ctx)
		if err != nil {
			return err
		}
		s.members, s.listed, s.subscribed = current, s.options.Clock.Now(), map[eventing.Key][]eventing.Consumer{}
		for _, c := range all {
			s.subscribed[c.Stream] = append(s.subscribed[c.Stream], c)
		}
	}
	for _, c := range s.subscribed[sh.key] {
		if sh.consumers[c.Key].UID == c.UID {
			continue
		}
		if s.options.Clock.Since(s.listed) >= retry {
			s.members = nil
		}
		return fmt.Errorf("%w: %s", errBehind, c.Key)
	}
	return nil
}

// release leaves a stream to the replica that it belongs to.
func (s *Shards) release(sh *shard) {
	if !sh.taken {
		return
	}
	sh.setOpen(false)
	s.options.Broker.ReleaseStream(sh.key)
	sh.taken = false
	s.handOver(sh.key)
}

// remove ends a stream that does not exist any more.
func (s *Shards) remove(ctx context.Context, sh *shard) error {
	sh.known.Store(false)
	sh.setOpen(false)
	if sh.taken {
		if err := s.options.Broker.RemoveStream(ctx, sh.key); err != nil {
			return err
		}
		sh.taken = false
	}
	if sh.spec != nil {
		s.options.Broker.RemoveAddress(sh.key)
		sh.spec = nil
	}
	return nil
}
