package broker

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/delivery"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// Prune deletes the streams and queues of deleted objects from the log. It ignores streams that were created after its list of the
// log, so that objects whose creation this replica has not observed yet lose no events.
func (b *Broker) Prune(ctx context.Context) error {
	if err := b.pruneStreams(ctx); err != nil {
		return err
	}
	queues := map[*stream]map[string]uint64{}
	b.streams.Range(func(_, found any) bool {
		s := found.(*stream)
		queues[s] = s.queues
		return true
	})
	return b.pruneQueues(ctx, queues)
}

func (b *Broker) pruneStreams(ctx context.Context) error {
	ids, err := b.options.Log.StreamIDs(ctx)
	if err != nil {
		return fmt.Errorf("list event log: %w", err)
	}
	uids := make([]types.UID, 0, len(ids))
	for _, id := range ids {
		uids = append(uids, UIDOf(id))
	}
	gone, err := b.options.gone(ctx, uids)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if !gone.Has(UIDOf(id)) {
			continue
		}
		klog.FromContext(ctx).Info("Deleting events of removed Broker or Channel", "log", id)
		if err := b.options.Log.DeleteStream(ctx, id); err != nil {
			return fmt.Errorf("delete event log: %w", err)
		}
	}
	return nil
}

// partitionInfix separates a UID from the number of a partition in the ID of a log.
const partitionInfix = "_"

// logID returns the ID of the log of a partition: the UID of the stream, with the number of the partition after the first one.
func logID(s *eventing.Stream) string {
	if s.Key.Partition == 0 {
		return string(s.UID)
	}
	return string(s.UID) + partitionInfix + strconv.Itoa(s.Key.Partition)
}

// UIDOf returns the UID of the stream that a log belongs to.
func UIDOf(id string) types.UID {
	uid, _, _ := strings.Cut(id, partitionInfix)
	return types.UID(uid)
}

// pruneQueues deletes the queues of deleted consumers among queues that have records. A queue that RemoveConsumer deleted has
// records again if the log lost its deletion, or stored an append whose result was unknown.
func (b *Broker) pruneQueues(ctx context.Context, queues map[*stream]map[string]uint64) error {
	var uids []types.UID
	for s, names := range queues {
		for queue := range names {
			if queue != delivery.SharedQueue && queue != delivery.RetryQueue && s.consumer(consumerOf(queue)) == nil {
				uids = append(uids, consumerOf(queue))
			}
		}
	}
	gone, err := b.options.gone(ctx, uids)
	if err != nil || len(gone) == 0 {
		return err
	}
	for s, names := range queues {
		for queue := range names {
			if !gone.Has(consumerOf(queue)) || s.removed.Load() {
				continue
			}
			klog.FromContext(ctx).V(2).Info("Deleting events of removed Trigger or Subscription", "stream", s.spec.Key.String(), "queue", queue)
			if err := s.log.DeleteQueue(ctx, queue); err != nil && !s.removed.Load() {
				return fmt.Errorf("delete events of removed consumer: %w", err)
			}
		}
	}
	return nil
}

// consumerOf returns the consumer of a queue.
func consumerOf(queue string) types.UID {
	return types.UID(strings.TrimSuffix(queue, deadLetterSuffix))
}

// gone returns the objects that no longer exist in the API.
func (o *Options) gone(ctx context.Context, uids []types.UID) (sets.Set[types.UID], error) {
	gone := sets.New[types.UID]()
	for _, uid := range uids {
		if !o.Exists(uid) {
			gone.Insert(uid)
		}
	}
	if len(gone) == 0 || o.Existing == nil {
		return gone, nil
	}
	existing, err := o.Existing(ctx)
	if err != nil {
		return nil, fmt.Errorf("list objects in the event log: %w", err)
	}
	return gone.Difference(existing), nil
}
