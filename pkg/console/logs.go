package console

import (
	"net/http"

	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/inspect"
)

// shownLines is the number of most recent lines of each instance with which a log begins.
const shownLines = 100

// logs sends the lines of the log of a Service as events, until the browser closes the page.
func (c *Console) logs(w http.ResponseWriter, r *http.Request) {
	release, ok := c.reserve(w)
	if !ok {
		return
	}
	defer release()
	s, err := newStream(w)
	if err != nil {
		return
	}
	l := &inspect.Logs{
		Client: c.knative, Namespace: r.PathValue("namespace"), Clock: clock.RealClock{}, LogOptions: inspect.LogOptions{Tail: shownLines},
		Print: func(line []byte) error { return s.send("line", string(line)) },
	}
	if err := l.FollowService(r.Context(), r.PathValue("name")); err != nil && r.Context().Err() == nil {
		s.send("problem", explain(err)) //nolint:errcheck // the browser has closed the connection
	}
}
