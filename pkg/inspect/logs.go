package inspect

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned"
)

// LogOptions select lines.
type LogOptions struct {
	// Since omits older lines. Zero has all lines.
	Since time.Duration
	// Tail is the number of most recent lines of each instance to begin with. -1 has all lines.
	Tail int64
	// Container is the name of a container. Empty selects all except init containers.
	Container string
}

// Logs reads the logs of Services and Revisions line by line. All fields are required.
type Logs struct {
	Client    versioned.Interface
	Namespace string
	Clock     clock.Clock
	LogOptions
	// Print gets each line, which begins with the instance in brackets and ends with a line break. It is called once at a time. Its error
	// ends the reading.
	Print func(line []byte) error

	// mu keeps lines of different Revisions apart.
	mu sync.Mutex
}

// print prints a line that ends with a line break.
func (l *Logs) print(line []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Print(line)
}

// request returns the request of a log. since is zero for all lines, tail -1.
func (l *Logs) request(revision string, since time.Duration, tail int64) *rest.Request {
	request := l.Client.ServingV1().RESTClient().Get().Namespace(l.Namespace).Resource("revisions").Name(revision).SubResource("log")
	if since > 0 {
		request.Param("sinceSeconds", fmt.Sprint(int64(math.Ceil(since.Seconds()))))
	}
	if tail >= 0 {
		request.Param("tailLines", fmt.Sprint(tail))
	}
	if l.Container != "" {
		request.Param("container", l.Container)
	}
	return request
}

// Copy prints the present lines of a Revision.
func (l *Logs) Copy(ctx context.Context, revision string) error {
	stream, err := l.request(revision, l.Since, l.Tail).Stream(ctx)
	if err != nil {
		return err
	}
	defer stream.Close()
	return EachLine(stream, l.print)
}

// maxFollowed bounds the Revisions that are followed at once, because the server bounds the logs that a user follows. Revisions with
// traffic, and the latest one, always are followed.
const maxFollowed = 16

// retryDelay is the delay before an interrupted log or watch is opened again.
const retryDelay = time.Second

// FollowService follows the logs of the Revisions of a Service that have traffic, including later ones, until ctx ends or the Service is
// deleted. A Revision that loses its traffic still is followed, because its instances have requests.
func (l *Logs) FollowService(ctx context.Context, service string) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	f := &serviceFollower{Logs: l, begun: l.Clock.Now(), end: end}
	defer f.running.Wait()
	err := l.watchService(ctx, service, f.update)
	if cause := context.Cause(ctx); err == nil && cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	end(nil)
	return err
}

// serviceFollower follows the Revisions of a Service.
type serviceFollower struct {
	*Logs
	begun   time.Time
	end     context.CancelCauseFunc
	running sync.WaitGroup
	// updated is true after the first update.
	updated bool

	// mu guards followed, the followed Revisions, oldest first.
	mu       sync.Mutex
	followed []*followedRevision
}

type followedRevision struct {
	name string
	stop context.CancelFunc
}

// update follows the Revisions that a Service has now.
func (f *serviceFollower) update(ctx context.Context, service *servingv1.Service) {
	names := Routed(service)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range names {
		if slices.ContainsFunc(f.followed, func(r *followedRevision) bool { return r.name == name }) {
			continue
		}
		following, stop := context.WithCancel(ctx)
		revision := &followedRevision{name, stop}
		f.followed = append(f.followed, revision)
		since, tail := f.Since, f.Tail
		if f.updated {
			// The options apply to earlier lines only.
			since, tail = f.Clock.Since(f.begun)+time.Second, -1
		}
		f.running.Go(func() {
			defer stop()
			if err := f.followRevision(following, name, since, tail); err != nil {
				f.end(err)
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			f.followed = slices.DeleteFunc(f.followed, func(r *followedRevision) bool { return r == revision })
		})
	}
	f.updated = true
	for i := 0; i < len(f.followed) && len(f.followed) > maxFollowed; {
		if slices.Contains(names, f.followed[i].name) {
			i++
			continue
		}
		f.followed[i].stop()
		f.followed = slices.Delete(f.followed, i, i+1)
	}
}

// watchService calls update with a Service and after each change, until ctx ends or the Service is deleted.
func (l *Logs) watchService(ctx context.Context, name string, update func(context.Context, *servingv1.Service)) error {
	all := l.Client.ServingV1().Services(l.Namespace)
	for first := true; ; first = false {
		// Without a version, the events of a watch begin with the present object.
		watcher, err := all.Watch(ctx, metav1.ListOptions{FieldSelector: metav1.ObjectNameField + "=" + name})
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the user has ended it
		case err != nil && (first || apierrors.IsForbidden(err)):
			return err
		case err == nil:
			deleted := false
			for event := range watcher.ResultChan() {
				if service, ok := event.Object.(*servingv1.Service); ok && event.Type != watch.Deleted {
					update(ctx, service)
				} else if ok {
					deleted = true
					break
				}
			}
			watcher.Stop()
			if deleted {
				return nil
			}
		}
		if !l.wait(ctx) {
			return nil
		}
		// The Service may have been deleted between two watches.
		if _, err := all.Get(ctx, name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
			return nil
		}
	}
}

// wait waits before a retry. It returns false if ctx ends.
func (l *Logs) wait(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-l.Clock.After(retryDelay):
		return true
	}
}

// FollowRevision follows the log of a Revision until ctx ends or the Revision is deleted.
func (l *Logs) FollowRevision(ctx context.Context, revision string) error {
	return l.followRevision(ctx, revision, l.Since, l.Tail)
}

// followRevision prints the lines of a Revision until ctx ends or the Revision is deleted. It continues after interruptions: then lines
// that were written meanwhile come next, and lines that were printed before are skipped.
func (l *Logs) followRevision(ctx context.Context, revision string, since time.Duration, tail int64) error {
	printed := &printedLines{last: l.Clock.Now()}
	for first := true; ; first = false {
		stream, err := l.request(revision, since, tail).Param("follow", "true").Stream(ctx)
		if err == nil {
			var failed error
			_ = EachLine(stream, func(line []byte) error {
				if printed.repeats(line) {
					return nil
				}
				printed.add(line, l.Clock.Now())
				failed = l.print(line)
				return failed
			})
			stream.Close()
			if failed != nil {
				return failed
			}
			// The stream was opened, so an error of reading it is an interruption.
		}
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the user has ended it
		case apierrors.IsNotFound(err) && !first:
			return nil
		case err != nil && (first || apierrors.IsForbidden(err)):
			return err
		}
		if !l.wait(ctx) {
			return nil
		}
		since, tail = printed.reopen(l.Clock.Now()), -1
	}
}
