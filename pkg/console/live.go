package console

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned"
)

const (
	// maxLive bounds the pages with updates at the same time.
	maxLive = 32
	// settle is how long changes are collected before an update.
	settle = 200 * time.Millisecond
	// rewatch is the pause before a watch that ended begins again.
	rewatch = 2 * time.Second
)

// watched watches the objects of a kind in a namespace.
type watched func(ctx context.Context, client versioned.Interface, namespace string, o metav1.ListOptions) (watch.Interface, error)

var (
	servingKinds = []watched{
		func(ctx context.Context, c versioned.Interface, namespace string, o metav1.ListOptions) (watch.Interface, error) {
			return c.ServingV1().Services(namespace).Watch(ctx, o)
		},
		func(ctx context.Context, c versioned.Interface, namespace string, o metav1.ListOptions) (watch.Interface, error) {
			return c.ServingV1().Revisions(namespace).Watch(ctx, o)
		},
	}
	eventingKinds = []watched{
		func(ctx context.Context, c versioned.Interface, namespace string, o metav1.ListOptions) (watch.Interface, error) {
			return c.EventingV1().Brokers(namespace).Watch(ctx, o)
		},
		func(ctx context.Context, c versioned.Interface, namespace string, o metav1.ListOptions) (watch.Interface, error) {
			return c.EventingV1().Triggers(namespace).Watch(ctx, o)
		},
		func(ctx context.Context, c versioned.Interface, namespace string, o metav1.ListOptions) (watch.Interface, error) {
			return c.MessagingV1().Channels(namespace).Watch(ctx, o)
		},
		func(ctx context.Context, c versioned.Interface, namespace string, o metav1.ListOptions) (watch.Interface, error) {
			return c.MessagingV1().Subscriptions(namespace).Watch(ctx, o)
		},
		servingKinds[0],
	}
	runKinds = []watched{
		func(ctx context.Context, c versioned.Interface, namespace string, o metav1.ListOptions) (watch.Interface, error) {
			return c.EventingV1alpha1().EventRuns(namespace).Watch(ctx, o)
		},
	}
)

// updates returns the handler that sends the content of a page as an event whenever its objects change (WHATWG HTML, 9.2 Server-sent
// events).
func (c *Console) updates(p *page) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		release, ok := c.reserve(w)
		if !ok {
			return
		}
		defer release()
		s, err := newStream(w)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		changed := c.watch(r.Context(), p.watches, r.PathValue("namespace"))
		var passed <-chan time.Time
		if p.rated {
			ticker := time.NewTicker(sampleInterval)
			defer ticker.Stop()
			passed = ticker.C
		}
		last := ""
		for {
			select {
			case <-r.Context().Done():
				return
			case <-passed:
			case <-changed:
			}
			// More changes usually follow at once.
			select {
			case <-r.Context().Done():
				return
			case <-time.After(settle):
			}
			select {
			case <-changed:
			default:
			}
			content, _ := c.render(r.Context(), p, r)
			if string(content) == last {
				continue
			}
			last = string(content)
			if s.send("content", last) != nil {
				return
			}
		}
	})
}

// reserve counts a page with updates until release. Otherwise it responds that there are too many.
func (c *Console) reserve(w http.ResponseWriter) (release func(), ok bool) {
	select {
	case c.live <- struct{}{}:
		return func() { <-c.live }, true
	default:
		http.Error(w, fmt.Sprintf("At most %d pages are updated at a time; close others.", maxLive), http.StatusTooManyRequests)
		return nil, false
	}
}

// watch returns a channel that has a value after a change of a kind. Kinds that the user may not watch are left out.
func (c *Console) watch(ctx context.Context, kinds []watched, namespace string) <-chan struct{} {
	changed := make(chan struct{}, 1)
	for _, kind := range kinds {
		go func() {
			for ctx.Err() == nil {
				if w, err := kind(ctx, c.knative, namespace, metav1.ListOptions{}); err == nil {
					for range w.ResultChan() {
						select {
						case changed <- struct{}{}:
						default:
						}
					}
					w.Stop()
				}
				select {
				case <-ctx.Done():
				case <-time.After(rewatch):
				}
			}
		}()
	}
	return changed
}

// stream sends server-sent events.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

func newStream(w http.ResponseWriter) (*stream, error) {
	w.Header().Set("Content-Type", "text/event-stream")
	s := &stream{w, http.NewResponseController(w)}
	return s, s.control.Flush()
}

// send sends an event.
func (s *stream) send(event, data string) error {
	// Each of them ends a line.
	data = strings.NewReplacer("\r\n", "\ndata: ", "\r", "\ndata: ", "\n", "\ndata: ").Replace(data)
	if _, err := fmt.Fprintf(s.w, "event: %s\ndata: %s\n\n", event, data); err != nil {
		return err
	}
	return s.control.Flush()
}
