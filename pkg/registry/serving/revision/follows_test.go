package revision

import (
	"context"
	"fmt"
	"io"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// TestFollowLimits repeats finding 20 of the security review: the number of concurrently followed logs is limited for each
// Revision, user and namespace, and excess requests are rejected with Retry-After.
// It covers conventions HTTP Status Codes-11, conventions Response Status-12.
func TestFollowLimits(t *testing.T) {
	revisions := logged()
	for i := range 20 {
		r := revisions.fakeRevisions["hello-1"].DeepCopy()
		r.Name = fmt.Sprintf("r-%d", i)
		r.Namespace = fmt.Sprintf("ns-%d", i/10)
		revisions.fakeRevisions[r.Name] = r
	}
	for name, tt := range map[string]struct {
		limit    int
		user     func(i int) string
		revision func(i int) string
	}{
		"Revision":  {maxFollowsOfRevision, func(i int) string { return fmt.Sprint("user", i) }, func(int) string { return "r-0" }},
		"user":      {maxFollowsOfUser, func(int) string { return "user" }, func(i int) string { return fmt.Sprintf("r-%d", i%20) }},
		"namespace": {maxFollowsOfNamespace, func(i int) string { return fmt.Sprint("user", i) }, func(i int) string { return fmt.Sprintf("r-%d", i%10) }},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			l := &logREST{LogOptions: LogOptions{Source: source{}}, revisions: revisions}
			follow := func(i int, follow bool) (io.ReadCloser, error) {
				as := request.WithUser(ctx, &user.DefaultInfo{Name: tt.user(i)})
				return open(as, l, tt.revision(i), &servingv1.RevisionLogOptions{Follow: follow})
			}
			streams := make([]io.ReadCloser, tt.limit)
			for i := range streams {
				var err error
				if streams[i], err = follow(i, true); err != nil {
					t.Fatalf("log %d: %v", i, err)
				}
			}
			_, err := follow(tt.limit, true)
			if seconds, suggested := apierrors.SuggestsClientDelay(err); !apierrors.IsTooManyRequests(err) || !suggested || seconds != followRetrySeconds {
				t.Errorf("one more: %v", err)
			}
			// The user's priority level limits logs that are not followed.
			if stream, err := follow(tt.limit, false); err != nil {
				t.Errorf("without follow: %v", err)
			} else {
				stream.Close()
			}
			streams[0].Close()
			streams[0].Close()
			if streams[0], err = follow(0, true); err != nil {
				t.Errorf("after one has ended: %v", err)
			}
			if _, err := follow(0, true); !apierrors.IsTooManyRequests(err) {
				t.Errorf("one that ended twice: %v", err)
			}
			for _, stream := range streams {
				stream.Close()
			}
			if len(l.follows.counts) > 0 {
				t.Errorf("at the end %v are counted", l.follows.counts)
			}
		})
	}
}
