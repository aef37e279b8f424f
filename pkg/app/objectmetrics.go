package app

import (
	"os"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/objectmetrics"
)

// newObjectMetrics returns the reader of the metrics of objects at all replicas. r is nil without other replicas; they may read the metrics of this one.
func newObjectMetrics(gatherer metrics.Gatherer, r *replica) *objectmetrics.Reader {
	reader := &objectmetrics.Reader{Start: time.Now(), Gather: gatherer.Gather, Clock: clock.RealClock{}}
	if r == nil {
		reader.Name, _ = os.Hostname() // empty without one
		return reader
	}
	reader.Name, reader.Peers, reader.Transport = r.config.PodName, r.membership.View(), r.client
	r.server.Handle(objectmetrics.Element, reader.Handler())
	return reader
}
