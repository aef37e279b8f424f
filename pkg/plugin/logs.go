package plugin

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// logsOptions are the flags of the command logs.
type logsOptions struct {
	follow    bool
	since     time.Duration
	tail      int64
	container string
}

func newLogsCommand(e *environment) *cobra.Command {
	logged := kinds{services, revisions}
	o := &logsOptions{}
	command := &cobra.Command{
		Use:   "logs (service|revision) NAME",
		Short: "Print the logs of a Service",
		Long: "Prints the logs of all instances of a Service or Revision; each line begins with the instance in brackets. With --follow, it continues across " +
			"new Revisions and across scaling to zero, until it is interrupted or the object is deleted.",
		Example: "  kubectl knative logs service hello --since 10m\n" +
			"  kubectl knative logs service hello -f --tail 0",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: logged.complete(e),
		RunE: func(command *cobra.Command, args []string) error {
			kind, name, err := logged.object(args)
			if err != nil {
				return err
			}
			if err := o.validate(); err != nil {
				return err
			}
			return o.run(command.Context(), e, kind, name)
		},
	}
	flags := command.Flags()
	flags.BoolVarP(&o.follow, "follow", "f", false, "Continue with new lines.")
	flags.DurationVar(&o.since, "since", 0, "Omit lines older than this duration, such as 10m. Zero prints all lines.")
	flags.Int64Var(&o.tail, "tail", -1, "Number of most recent lines of each instance to begin with. -1 prints all lines.")
	flags.StringVarP(&o.container, "container", "c", "", "Name of the container. Empty selects all except init containers.")
	return command
}

func (o *logsOptions) validate() error {
	if o.since != 0 && o.since < time.Second {
		return fmt.Errorf("--since must be at least 1s, not %s", o.since)
	}
	if o.tail < -1 {
		return fmt.Errorf("--tail must be at least -1, not %d", o.tail)
	}
	return nil
}

func (o *logsOptions) run(ctx context.Context, e *environment, kind *kind, name string) error {
	s, err := e.connect()
	if err != nil {
		return err
	}
	l := &logs{session: s, options: o, environment: e}
	if kind == revisions {
		if o.follow {
			return l.followRevision(ctx, name, o.since, o.tail)
		}
		return l.copy(ctx, name)
	}
	if _, err := s.client.ServingV1().Services(s.namespace).Get(ctx, name, metav1.GetOptions{}); err != nil {
		return err
	}
	if o.follow {
		return l.followService(ctx, name)
	}
	names, err := s.revisionsOf(ctx, name)
	if err != nil {
		return err
	}
	slices.Reverse(names)
	for _, name := range names {
		// A Revision may be deleted meanwhile.
		if err := l.copy(ctx, name); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	if !l.printed {
		fmt.Fprintf(e.Err, "No lines in the logs of the instances of Service %q; wait for new ones with --follow.\n", name)
	}
	return nil
}

// logs prints logs line by line.
type logs struct {
	*session
	*environment
	options *logsOptions

	// mu keeps lines of different Revisions apart. It guards printed, which is true after the first line.
	mu      sync.Mutex
	printed bool
}

// print prints a line that ends with a line break.
func (l *logs) print(line []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.printed = true
	_, err := l.Out.Write(line)
	return err
}

// request returns the request of a log. since is zero for all lines, tail -1.
func (l *logs) request(revision string, since time.Duration, tail int64) *rest.Request {
	request := l.client.ServingV1().RESTClient().Get().Namespace(l.namespace).Resource("revisions").Name(revision).SubResource("log")
	if since > 0 {
		request.Param("sinceSeconds", fmt.Sprint(int64(math.Ceil(since.Seconds()))))
	}
	if tail >= 0 {
		request.Param("tailLines", fmt.Sprint(tail))
	}
	if l.options.container != "" {
		request.Param("container", l.options.container)
	}
	return request
}

// copy prints the present lines of a Revision.
func (l *logs) copy(ctx context.Context, revision string) error {
	stream, err := l.request(revision, l.options.since, l.options.tail).Stream(ctx)
	if err != nil {
		return err
	}
	defer stream.Close()
	return eachLine(stream, l.print)
}

// maxFollowed bounds the Revisions that are followed at once, because the server bounds the logs that a user follows. Revisions with
// traffic, and the latest one, always are followed.
const maxFollowed = 16

// retryDelay is the delay before an interrupted log or watch is opened again.
const retryDelay = time.Second

// followService follows the logs of the Revisions of a Service that have traffic, including later ones, until ctx ends or the Service is
// deleted. A Revision that loses its traffic still is followed, because its instances have requests.
func (l *logs) followService(ctx context.Context, service string) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	f := &serviceFollower{logs: l, begun: l.clock.Now(), end: end}
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
	*logs
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
	names := routed(service)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range names {
		if slices.ContainsFunc(f.followed, func(r *followedRevision) bool { return r.name == name }) {
			continue
		}
		following, stop := context.WithCancel(ctx)
		revision := &followedRevision{name, stop}
		f.followed = append(f.followed, revision)
		since, tail := f.options.since, f.options.tail
		if f.updated {
			// The options apply to earlier lines only.
			since, tail = f.clock.Since(f.begun)+time.Second, -1
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
func (l *logs) watchService(ctx context.Context, name string, update func(context.Context, *servingv1.Service)) error {
	all := l.client.ServingV1().Services(l.namespace)
	for first := true; ; first = false {
		// Without a version, the events of a watch begin with the present object.
		watcher, err := all.Watch(ctx, metav1.ListOptions{FieldSelector: metav1.ObjectNameField + "=" + name})
		switch {
		case ctx.Err() != nil:
			return nil
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
func (l *logs) wait(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-l.clock.After(retryDelay):
		return true
	}
}

// followRevision prints the lines of a Revision until ctx ends or the Revision is deleted. It continues after interruptions: then lines
// that were written meanwhile come next, and lines that were printed before are skipped.
func (l *logs) followRevision(ctx context.Context, revision string, since time.Duration, tail int64) error {
	printed := &printedLines{last: l.clock.Now()}
	for first := true; ; first = false {
		stream, err := l.request(revision, since, tail).Param("follow", "true").Stream(ctx)
		if err == nil {
			var failed error
			err = eachLine(stream, func(line []byte) error {
				if printed.repeats(line) {
					return nil
				}
				printed.add(line, l.clock.Now())
				failed = l.print(line)
				return failed
			})
			stream.Close()
			if failed != nil {
				return failed
			}
			// The stream was opened, so an error of reading it is an interruption.
			err = nil
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case apierrors.IsNotFound(err) && !first:
			return nil
		case err != nil && (first || apierrors.IsForbidden(err)):
			return err
		}
		if !l.wait(ctx) {
			return nil
		}
		since, tail = printed.reopen(l.clock.Now()), -1
	}
}
