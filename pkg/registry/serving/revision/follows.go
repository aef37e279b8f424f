package revision

import (
	"fmt"
	"io"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// Limits of concurrently followed logs per Revision, user and namespace. Each log requires a watch of Pods and a stream
	// for each container from the host, in the name of this server, which the user's priority level does not limit.
	maxFollowsOfRevision  = 16
	maxFollowsOfUser      = 32
	maxFollowsOfNamespace = 64
	// followRetrySeconds is the value of Retry-After.
	followRetrySeconds = 10
)

// follows limits the number of concurrently followed logs. The zero value is ready to use.
type follows struct {
	// mu guards counts: the number of followed logs by subject.
	mu     sync.Mutex
	counts map[followed]int
}

// followed identifies the subject of a limit: a user, a namespace or a Revision.
type followed struct{ kind, namespace, name string }

// begin counts a followed log until end is called. It fails with TooManyRequests if a limit is reached.
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
				"%d logs are already being followed for the %s %q, which is the limit of this replica; stop one of them, or omit 'follow'",
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
