package bench

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

const (
	// clients is the number of concurrent requests.
	clients = 8
	// rounds is the number of alternating slices of the work on the two kinds, so that other load on the machine affects both.
	rounds = 10
	// readings is the number of reads of each object.
	readings = 3
	// listings is the number of lists.
	listings = 20
)

// objects is the number of stored objects per kind, fewer with -short.
var objects = 2000

// shortObjects is objects with -short.
const shortObjects = 500

// turns calls work for each slice of the object numbers.
func turns(work func(from, to int)) {
	for round := range rounds {
		work(round*objects/rounds, (round+1)*objects/rounds)
	}
}

// subject is a measured kind.
type subject struct {
	resource schema.GroupVersionResource
	object   func(name string) *unstructured.Unstructured
	client   rest.Interface
}

func (s *subject) path(name string) []string {
	path := []string{"apis", s.resource.Group, s.resource.Version}
	if s.resource.Group == "" {
		path = []string{"api", s.resource.Version}
	}
	path = append(path, "namespaces", namespace, s.resource.Resource)
	if name != "" {
		path = append(path, name)
	}
	return path
}

func name(i int) string { return fmt.Sprintf("object-%05d", i) }

// create stores the objects from..to-1 and returns the durations.
func (s *subject) create(b *testing.B, from, to int) time.Duration {
	start := time.Now()
	parallel(b, from, to, func(ctx context.Context, i int) error {
		body, err := s.object(name(i)).MarshalJSON()
		if err != nil {
			return err
		}
		raw, err := s.client.Post().AbsPath(s.path("")...).Body(body).DoRaw(ctx)
		if err != nil {
			return fmt.Errorf("%w: %s", err, raw)
		}
		return nil
	})
	return time.Since(start)
}

// get reads the objects from..to-1 and returns the durations.
func (s *subject) get(b *testing.B, from, to int) []time.Duration {
	latencies := make([]time.Duration, to-from)
	parallel(b, from, to, func(ctx context.Context, i int) error {
		start := time.Now()
		_, err := s.client.Get().AbsPath(s.path(name(i))...).DoRaw(ctx)
		latencies[i-from] = time.Since(start)
		return err
	})
	return latencies
}

// list reads all objects and returns the duration and the size of the response.
func (s *subject) list(b *testing.B) (time.Duration, int) {
	start := time.Now()
	raw, err := s.client.Get().AbsPath(s.path("")...).DoRaw(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	return time.Since(start), len(raw)
}

// read returns an object as encoded in the response.
func (s *subject) read(b *testing.B, object string) string {
	raw, err := s.client.Get().AbsPath(s.path(object)...).DoRaw(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	return string(raw)
}

// parallel runs work for from..to-1 with as many goroutines as clients, and fails at the first error.
func parallel(b *testing.B, from, to int, work func(ctx context.Context, i int) error) {
	b.Helper()
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	next := atomic.Int64{}
	next.Store(int64(from))
	var group sync.WaitGroup
	for range clients {
		group.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= to || ctx.Err() != nil {
					return
				}
				if err := work(ctx, i); err != nil {
					cancel(fmt.Errorf("object %d: %w", i, err))
					return
				}
			}
		})
	}
	group.Wait()
	if err := context.Cause(ctx); err != nil {
		b.Fatal(err)
	}
}

func quantile(durations []time.Duration, q float64) time.Duration {
	slices.Sort(durations)
	return durations[int(float64(len(durations)-1)*q)]
}
