package reconciler

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/leader"
)

// Objects of other replicas are reconciled once without a write, and retried after an error. Objects that this replica starts to
// own are reconciled again.
func TestLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		writes, calls := map[string]int{}, map[string]int{}
		c := New("test", reconcile(func(ctx context.Context, request Request) error {
			name := request.Key.Name
			calls[name]++
			if following := refuses(ctx, t); following == request.Writes {
				t.Errorf("%s: following %v, writes %v", name, following, request.Writes)
			}
			current := &servingv1.Route{ObjectMeta: metav1.ObjectMeta{Name: name}}
			current.Status.ObservedGeneration = 1
			update := UpdateOf(counted(writes), &servingv1.Route{}, current)
			if _, err := request.Status.Write(ctx, update); err != nil {
				return err
			}
			if name == "failing" && calls[name] == 1 {
				return errors.New("the data plane is broken")
			}
			return nil
		}))
		owned := map[string]bool{"mine": true}
		c.Lead(func(key types.NamespacedName) bool { return owned[key.Name] })
		informer := &storeInformer{store: cache.NewStore(cache.MetaNamespaceKeyFunc)}
		if err := c.Watch(informer, KeyOf); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"mine", "other", "failing"} {
			route := &servingv1.Route{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
			if err := informer.store.Add(route); err != nil {
				t.Fatal(err)
			}
			informer.OnAdd(route, true)
		}
		expect := func(when, name string, wantCalls, wantWrites int) {
			t.Helper()
			if calls[name] != wantCalls || writes[name] != wantWrites {
				t.Errorf("%s: %s was reconciled %d times and written %d times, want %d and %d", when, name, calls[name], writes[name], wantCalls, wantWrites)
			}
		}
		run(t, c, 1, func() {
			if !isPrimed(c) {
				t.Error("not primed")
			}
			<-time.After(time.Hour)
			synctest.Wait()
			expect("at first", "mine", 1, 1)
			expect("at first", "other", 1, 0)
			expect("at first", "failing", 2, 0)
			owned["other"] = true
			c.Requeue(func(key types.NamespacedName) bool { return key.Name == "other" })
			synctest.Wait()
			expect("then", "mine", 1, 1)
			expect("then", "other", 2, 1)
			expect("then", "failing", 2, 0)
		})
	})
}

// refuses reports whether the transport refuses writes with ctx.
func refuses(ctx context.Context, t *testing.T) bool {
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://server/", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := leader.Guard(accepting{}).RoundTrip(r)
	if err == nil {
		response.Body.Close()
	}
	return errors.Is(err, leader.ErrFollowing)
}

type accepting struct{}

func (accepting) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

// counted is a StatusClient that counts the writes of each object.
type counted map[string]int

func (c counted) UpdateStatus(_ context.Context, route *servingv1.Route, _ metav1.UpdateOptions) (*servingv1.Route, error) {
	c[route.Name]++
	return route, nil
}

// storeInformer is a fakeInformer with objects.
type storeInformer struct {
	fakeInformer
	store cache.Store
}

func (s *storeInformer) GetStore() cache.Store { return s.store }
