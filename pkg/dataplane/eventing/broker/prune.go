package broker

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/delivery"
)

// Prune deletes from the log what belongs to objects that are gone. What came to be after it was listed here is not
// looked at, so that an object whose creation is not known here yet loses nothing.
func (b *Broker) Prune(ctx context.Context) error {
	if err := b.pruneStreams(ctx); err != nil {
		return err
	}
	return b.pruneQueues(ctx)
}

func (b *Broker) pruneStreams(ctx context.Context) error {
	ids, err := b.options.Log.StreamIDs(ctx)
	if err != nil {
		return fmt.Errorf("list event log: %w", err)
	}
	uids := make([]types.UID, 0, len(ids))
	for _, id := range ids {
		uids = append(uids, types.UID(id))
	}
	gone, err := b.options.gone(ctx, uids)
	if err != nil {
		return err
	}
	for uid := range gone {
		klog.FromContext(ctx).Info("Deleting events of removed Broker or Channel", "uid", uid)
		if err := b.options.Log.DeleteStream(ctx, string(uid)); err != nil {
			return fmt.Errorf("delete event log: %w", err)
		}
	}
	return nil
}

// pruneQueues deletes the queues of consumers that are gone, of the streams that are here.
func (b *Broker) pruneQueues(ctx context.Context) error {
	var uids []types.UID
	b.streams.Range(func(_, found any) bool {
		for queue := range found.(*stream).queues {
			if queue != delivery.SharedQueue && queue != delivery.RetryQueue {
				uids = append(uids, consumerOf(queue))
			}
		}
		return true
	})
	gone, err := b.options.gone(ctx, uids)
	if err != nil || len(gone) == 0 {
		return err
	}
	b.streams.Range(func(_, found any) bool {
		s := found.(*stream)
		for queue := range s.queues {
			if queue == delivery.SharedQueue || !gone.Has(consumerOf(queue)) || s.removed.Load() {
				continue
			}
			if err = s.log.DeleteQueue(ctx, queue); err != nil {
				err = fmt.Errorf("delete events of removed consumer: %w", err)
				return false
			}
		}
		return true
	})
	return err
}

// consumerOf returns the consumer of a queue.
func consumerOf(queue string) types.UID {
	return types.UID(strings.TrimSuffix(queue, deadLetterSuffix))
}

// gone returns the objects that the API does not have anymore.
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
