package streams

import (
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/ownership"
)

// share is the share of this replica in a stream, for one membership and number of partitions. Immutable.
type share struct {
	owners     ownership.Owners[eventing.Key]
	partitions int
	// own are the partitions that this replica owns.
	own []eventing.Key
}

// route returns a partition for a request, and whether this replica owns it.
func (s *share) route(first *stream) (partition eventing.Key, self bool) {
	if len(s.own) > 0 {
		return s.own[0], true
	}
	return first.key.Part(int(first.turn.Add(1)) % s.partitions), false
}

// of returns the partition of events, and whether this replica owns it: by the partition key of the first event that has one (CloudEvents
// Partitioning 1.0.2), otherwise one of its own in turn.
func (s *share) of(first *stream, events []*event.Event) (partition eventing.Key, self bool) {
	if s.partitions > 1 {
		for _, e := range events {
			if value, found := e.Get(event.PartitionKey); found {
				partition = first.key.Part(int(xxhash.Sum64String(value) % uint64(s.partitions)))
				return partition, slices.Contains(s.own, partition)
			}
		}
	}
	if len(s.own) > 1 {
		return s.own[int(first.turn.Add(1))%len(s.own)], true
	}
	return s.route(first)
}
