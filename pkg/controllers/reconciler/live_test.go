package reconciler

import (
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// get is a lister.
type get func(name string) (*servingv1.Route, error)

func (g get) Get(name string) (*servingv1.Route, error) { return g(name) }

// An object that does not exist or is being deleted is not live, without an error. A failed read is an error.
func TestLive(t *testing.T) {
	broken := errors.New("broken")
	for name, test := range map[string]struct {
		route *servingv1.Route
		err   error
		live  bool
		want  error
	}{
		"there":      {route: &servingv1.Route{}, live: true},
		"going":      {route: &servingv1.Route{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now}}},
		"gone":       {err: apierrors.NewNotFound(servingv1.Resource("routes"), "hello")},
		"unreadable": {err: broken, want: broken},
	} {
		t.Run(name, func(t *testing.T) {
			got, live, err := Live(get(func(string) (*servingv1.Route, error) { return test.route, test.err }), "hello")
			if got != test.route || live != test.live || !errors.Is(err, test.want) {
				t.Errorf("got %v, live %t, error %v", got, live, err)
			}
		})
	}
}
