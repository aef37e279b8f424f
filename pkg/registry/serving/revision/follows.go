package revision

import (
	"fmt"
	"io"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// How many logs may be followed at a time of one Revision, by one user, and in one namespace. Each is a watch of Pods and
	// a stream for each of their containers at the host, as this server, which the user's priority level does not bound.
	maxFollowsOfRevision  = 16
	maxFollowsOfUser      = 32
	maxFollowsOfNamespace = 64
	// followRetrySeconds is when it is worth asking again.
	followRetrySeconds = 10
)

// follows bounds the logs that are followed at a time. The zero value is ready to use.
type follows struct {
	// mu guards counts: how many are followed, by subject.
	mu     sync.Mutex
	counts map[followed]int
}

// followed is a subject of a limit: a kind and the name of one of it.
type followed struct{ kind, namespace, name string }

// begin counts another log that is followed until end is called. It fails with TooManyRequests if a limit is reached.
func (f *follows) begin(user, namespace, revision string) (end func(), err error) {
	subjects := map[followed]int{
		{"user", "", user}:                maxFollowsOfUser,
		{"namespace", "", namespace}:      maxFollowsOfNamespace,
		{"Revision", namespace, revision}: maxFollowsOfRevision,
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for subject, limit := range subjects {
		if f.counts[subject] >= limit {
			return nil, apierrors.NewTooManyRequests(fmt.Sprintf(
				"%d logs are followed already for the %s %q, which is the limit of this replica; end one of them, or ask without 'follow'",
				limit, subject.kind, subject.name), followRetrySeconds)
		}
	}
	if f.counts == nil {
		f.counts = map[followed]int{}
	}
	for subject := range subjects {
		f.counts[subject]++
	}
	return sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		for subject := range subjects {
			if f.counts[subject]--; f.counts[subject] == 0 {
				delete(f.counts, subject)
			}
		}
	}), nil
}

// followedStream is the stream of a log that counts as followed until it is closed.
type followedStream struct {
	io.ReadCloser
	end func()
}

// Close implements io.Closer.
func (s *followedStream) Close() error {
	defer s.end()
	return s.ReadCloser.Close()
}
