package ingress

import (
	"context"
	"errors"
	"net/http"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow/pressure"
)

const (
	// maxAppends bounds the requests that append to the event log at a time, maxAppendsPerNamespace the requests of one
	// namespace; minAppendsPerNamespace is the minimum of a namespace while processors are scarce.
	maxAppends, maxAppendsPerNamespace, minAppendsPerNamespace = 256, 192, 4
	// maxWaiting bounds the requests of one namespace that wait for admission.
	maxWaiting = 1024
	// batchedSize is the usual size of an event in a batch: the number of events is not known before admission.
	batchedSize = 512
)

// costOf returns the cost of a request with the bytes of one event or of a batch.
func costOf(batch bool, bytes int) flow.Cost {
	events := 1
	if batch {
		events = max(1, bytes/batchedSize)
	}
	return flow.CostOf(events, int64(bytes))
}

var errShare = &Refusal{Status: http.StatusTooManyRequests, Message: "the namespace exceeds its share of waiting requests"}

// admission decides which requests may append to the event log, so that a flood of events in one namespace does not delay
// the others.
type admission struct {
	queue *flow.Queue
	// close closes the pressure gauge of the queue.
	close func()
}

func newAdmission() *admission {
	gauge := pressure.New()
	return &admission{close: gauge.Close, queue: flow.NewQueue(flow.QueueOptions{
		Concurrency: maxAppends, PerTenant: maxAppendsPerNamespace, MinPerTenant: minAppendsPerNamespace, MaxWaiting: maxWaiting, Scarce: gauge.Scarce,
	})}
}

// admit waits until a request of a namespace with a cost may append its events; queue.Release ends it. It returns errShare if too many
// requests of the namespace wait, and the error of ctx if that ends first.
func (a *admission) admit(ctx context.Context, namespace string, cost flow.Cost) error {
	if cost > 1 {
		// The request itself was observed when it arrived.
		a.queue.Observe(namespace, cost-1)
	}
	err := a.queue.Acquire(ctx, namespace, cost)
	if errors.Is(err, flow.ErrOverShare) {
		return errShare
	}
	return err
}
