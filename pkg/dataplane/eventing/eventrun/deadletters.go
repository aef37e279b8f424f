package eventrun

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/types"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/deadletter"
)

// pageItems bounds the dead letters of a page.
const pageItems = 100

// Store is the dead letter store. See deadletter.Store.
type Store interface {
	Position(ctx context.Context, namespace string) (deadletter.Position, error)
	Read(ctx context.Context, q deadletter.Query) (letters []deadletter.Letter, next uint64, err error)
	Get(ctx context.Context, namespace string, sequence uint64) (deadletter.Letter, error)
	Delete(ctx context.Context, namespace string, sequence uint64) error
}

// deadLetters is the source of the dead letters of a consumer, up to the one named last. An event that fails again becomes a later dead letter, so it
// is not part of the run.
type deadLetters struct {
	store     Store
	namespace string
	consumer  types.UID
	last      string
}

// end returns the sequence of the last dead letter, or 0 if the dead letters are of another namespace of the same name.
func (d *deadLetters) end(ctx context.Context) (uint64, error) {
	position, err := d.store.Position(ctx, d.namespace)
	if errors.Is(err, deadletter.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if end, ok := position.Sequence(d.last); ok {
		return end, nil
	}
	return 0, nil
}

func (d *deadLetters) read(ctx context.Context, from uint64) (page []item, next uint64, err error) {
	end, err := d.end(ctx)
	if err != nil || from > end {
		return nil, 0, err
	}
	letters, next, err := d.store.Read(ctx, deadletter.Query{Namespace: d.namespace, Consumer: d.consumer, From: from, Count: pageItems, Bytes: pageBytes})
	if err != nil {
		return nil, 0, err
	}
	for i := range letters {
		l := &letters[i]
		if l.Sequence > end {
			return page, 0, nil
		}
		if !l.Reply {
			page = append(page, item{l.Event, l.Sequence})
		}
	}
	return page, next, nil
}

func (d *deadLetters) holds(ctx context.Context, i *item) (bool, error) {
	_, err := d.store.Get(ctx, d.namespace, i.position)
	if errors.Is(err, deadletter.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// done deletes a dead letter that is queued.
func (d *deadLetters) done(ctx context.Context, i *item, failed bool) error {
	if failed {
		return nil
	}
	if err := d.store.Delete(ctx, d.namespace, i.position); err != nil && !errors.Is(err, deadletter.ErrNotFound) {
		return err
	}
	return nil
}
