package kubernetes

import (
	"errors"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/backoff"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// creation is the progress of creating a Deployment: images are resolved, then the Deployment is created, and both are
// retried after failures.
type creation struct {
	// resolution is the result of resolving the images, resolving is true while that is in progress.
	resolution *resolution
	resolving  bool
	// refused is the reason why the Deployment does not exist, retry the timer of the next attempt, failures the number of
	// failed attempts.
	refused  *workload.Failure
	retry    clock.Timer
	failures int
}

// pending reports whether an attempt is in progress or scheduled.
func (c *creation) pending() bool { return c.resolving || c.retry != nil }

func (c *creation) reset() {
	if c.retry != nil {
		c.retry.Stop()
	}
	*c = creation{}
}

// firstRetry and maxRetry limit the delay before the creation of a Deployment is retried.
const firstRetry, maxRetry = time.Second, 5 * time.Minute

// refuse records the reason why the Deployment does not exist, and schedules a retry.
func (r *revision) refuse(failure *workload.Failure) {
	c := &r.creation
	c.refused = failure
	c.failures++
	if c.retry != nil {
		c.retry.Stop()
	}
	var timer clock.Timer
	timer = r.runtime.clock.AfterFunc(backoff.Delay(c.failures, firstRetry, maxRetry), func() {
		// The clock may hold its lock during this call, so the revision's lock is acquired in another goroutine.
		go func() {
			r.Lock()
			defer r.Unlock()
			if c.retry == timer {
				c.retry, c.resolution = nil, nil
				r.Notify()
			}
		}()
	})
	c.retry = timer
}

// isRefused reports whether the host refused a valid request permanently, as opposed to a transient error.
func isRefused(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	switch status.Status().Code {
	case http.StatusUnauthorized, http.StatusNotFound, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests:
		return false
	default:
		return status.Status().Code >= 400 && status.Status().Code < 500
	}
}
