package apiserver

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/identity"
)

// ordered is a handler with precedence whose writes are served until they are released.
type ordered struct {
	http.Handler
	precedence *precedence

	mu sync.Mutex
	// served has, by the name of the user, how many calls are being served, answered how many got an answer with a code.
	served   map[string]int
	answered map[int]int
	// release ends one call of a user for each value.
	release map[string]chan struct{}
}

func newOrdered() *ordered {
	o := &ordered{
		precedence: newPrecedence(serializer.NewCodecFactory(newScheme()), identity.Controllers{}),
		served:     map[string]int{}, answered: map[int]int{}, release: map[string]chan struct{}{},
	}
	o.precedence.beside = 2
	for _, u := range []user.Info{identity.NewControllers(), developer} {
		o.release[u.GetName()] = make(chan struct{})
	}
	o.Handler = o.precedence.order(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		u, _ := request.UserFrom(r.Context())
		if info, _ := request.RequestInfoFrom(r.Context()); info.Verb == "get" {
			return
		}
		o.count(u, 1)
		<-o.release[u.GetName()]
		o.count(u, -1)
	}))
	return o
}

var developer = &user.DefaultInfo{Name: "developer"}

func (o *ordered) count(u user.Info, n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.served[u.GetName()] += n
}

// call makes n calls.
func (o *ordered) call(ctx context.Context, u user.Info, verb string, n int) {
	ctx = request.WithUser(request.WithRequestInfo(ctx, &request.RequestInfo{
		IsResourceRequest: true, APIGroup: servingv1.GroupName, APIVersion: "v1", Verb: verb, Namespace: "ns",
	}), u)
	for range n {
		go func() {
			w := httptest.NewRecorder()
			o.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodPost, "/", nil))
			o.mu.Lock()
			defer o.mu.Unlock()
			o.answered[w.Code]++
		}()
	}
	synctest.Wait()
}

// end ends n calls of a user that are served.
func (o *ordered) end(u user.Info, n int) {
	for range n {
		o.release[u.GetName()] <- struct{}{}
	}
	synctest.Wait()
}

func (o *ordered) expect(t *testing.T, what string, controllers, users int) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	if a, b := o.served[identity.NewControllers().GetName()], o.served[developer.Name]; a != controllers || b != users {
		t.Errorf("%s: %d calls of controllers and %d of users are served, want %d and %d", what, a, b, controllers, users)
	}
}

// TestPrecedence covers which calls wait for users' writes, and until when.
func TestPrecedence(t *testing.T) {
	controllers := identity.NewControllers()
	synctest.Test(t, func(t *testing.T) {
		o := newOrdered()
		o.call(t.Context(), controllers, "update", 5)
		o.expect(t, "without users", 5, 0)
		o.call(t.Context(), developer, "create", 1)
		o.call(t.Context(), controllers, "create", 4)
		o.call(t.Context(), controllers, "get", 1)
		o.expect(t, "beside a user's write", 5, 1)
		if o.answered[http.StatusOK] != 1 {
			t.Error("a read waits")
		}
		o.end(controllers, 4)
		o.expect(t, "below the limit", 2, 1)
		o.end(controllers, 1)
		o.expect(t, "one for one", 2, 1)
		o.call(t.Context(), developer, "patch", 3)
		o.expect(t, "users do not wait", 2, 4)
		o.end(developer, 3)
		o.expect(t, "while one user writes", 2, 1)
		o.end(developer, 1)
		o.expect(t, "until the user's next write may come", 2, 0)
		<-time.After(lull / 2)
		o.call(t.Context(), developer, "patch", 1)
		<-time.After(2 * lull)
		o.expect(t, "beside the next write", 2, 1)
		o.end(developer, 1)
		<-time.After(lull)
		synctest.Wait()
		o.expect(t, "after the last user", 4, 0)
		o.end(controllers, 4)
		o.expect(t, "at the end", 0, 0)
		if o.answered[http.StatusOK] != 15 {
			t.Errorf("answers by code: %v", o.answered)
		}
	})
}

// TestPrecedenceOfSlowWrites expects a write that waits for something else, such as a webhook, to count for a bounded time only, and a write
// of the controllers that is canceled not to count.
func TestPrecedenceOfSlowWrites(t *testing.T) {
	controllers := identity.NewControllers()
	synctest.Test(t, func(t *testing.T) {
		o := newOrdered()
		o.call(t.Context(), developer, "create", 1)
		ctx, cancel := context.WithCancel(t.Context())
		o.call(ctx, controllers, "create", 5)
		o.expect(t, "at first", 2, 1)
		cancel()
		synctest.Wait()
		if o.answered[http.StatusTooManyRequests] != 3 || len(o.precedence.waiting) != 0 {
			t.Errorf("answers by code: %v; %d wait", o.answered, len(o.precedence.waiting))
		}
		o.call(t.Context(), controllers, "create", 2)
		o.expect(t, "before they are slow", 2, 1)
		<-time.After(maxWriteTurn + lull)
		synctest.Wait()
		o.expect(t, "once all are slow", 4, 1)
		o.call(t.Context(), controllers, "create", 3)
		o.expect(t, "users' slow writes do not count", 7, 1)
		o.end(developer, 1)
		o.end(controllers, 7)
		if o.precedence.users != 0 || o.precedence.own != 0 {
			t.Errorf("%d of users and %d of controllers count at the end", o.precedence.users, o.precedence.own)
		}
	})
}
