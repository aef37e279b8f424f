package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// brokers has the Broker orders, and the Broker kafka of another class.
type brokers struct{}

func (brokers) Get(_ context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	switch name {
	case "orders":
		return &eventingv1.Broker{}, nil
	case "kafka":
		return &eventingv1.Broker{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{eventingv1.BrokerClassAnnotationKey: "Kafka"}}}, nil
	}
	return nil, apierrors.NewNotFound(eventingv1.Resource("brokers"), name)
}

// tails returns a stream that stops when its context is canceled, or an error.
type tails struct{ err error }

func (s tails) Tail(ctx context.Context, broker eventing.Key, options *eventingv1.BrokerTailOptions) (io.ReadCloser, error) {
	if s.err != nil {
		return nil, s.err
	}
	r, w := io.Pipe()
	go func() {
		fmt.Fprintf(w, "%s %s %t\n", broker, options.Filter, options.Data)
		<-ctx.Done()
		w.Close()
	}()
	return r, nil
}

// TestTail checks who sees which events, and how tails end.
func TestTail(t *testing.T) {
	stopping := make(chan struct{})
	var asked []string
	rest := &Tail{Brokers: brokers{}, Tails: &LateTails{}, Stopping: stopping, Authorizer: authorizer.AuthorizerFunc(
		func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			asked = append(asked, fmt.Sprintf("%s %s %s/%s.%s %s/%s", a.GetUser().GetName(), a.GetVerb(), a.GetResource(), a.GetSubresource(), a.GetAPIGroup(), a.GetNamespace(), a.GetName()))
			if a.GetUser().GetName() == "jane" {
				return authorizer.DecisionAllow, "", nil
			}
			return authorizer.DecisionNoOpinion, "", errors.New("down")
		})}
	as := func(name string) context.Context {
		return request.WithUser(request.WithNamespace(t.Context(), "shop"), &user.DefaultInfo{Name: name})
	}
	for name, test := range map[string]struct {
		ctx     context.Context
		name    string
		options runtime.Object
		check   func(error) bool
	}{
		"no Broker":         {as("jane"), "none", &eventingv1.BrokerTailOptions{}, apierrors.IsNotFound},
		"foreign":           {as("jane"), "kafka", &eventingv1.BrokerTailOptions{}, apierrors.IsBadRequest},
		"data":              {as("joe"), "orders", &eventingv1.BrokerTailOptions{Data: true}, apierrors.IsForbidden},
		"data without user": {t.Context(), "orders", &eventingv1.BrokerTailOptions{Data: true}, apierrors.IsForbidden},
		"other options":     {as("jane"), "orders", &eventingv1.Broker{}, apierrors.IsInternalError},
	} {
		if _, err := rest.Get(test.ctx, test.name, test.options); !test.check(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	asked = nil
	open := func(user string, options *eventingv1.BrokerTailOptions) (io.ReadCloser, error) {
		t.Helper()
		obj, err := rest.Get(as(user), "orders", options)
		if err != nil {
			t.Fatal(err)
		}
		stream, flush, mediaType, err := obj.(*tailStream).InputStream(t.Context(), "", "")
		if err == nil && (!flush || mediaType != "application/x-ndjson") {
			t.Errorf("flush %t, media type %s", flush, mediaType)
		}
		return stream, err
	}
	if _, err := open("joe", &eventingv1.BrokerTailOptions{}); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("without tails: %v", err)
	}
	for _, test := range []struct {
		err   error
		check func(error) bool
	}{
		{fmt.Errorf("%w: 8", ErrTooManyTails), apierrors.IsTooManyRequests}, {fmt.Errorf("%w: moved", ErrTailUnavailable), apierrors.IsServiceUnavailable},
		{errors.New("parameter 'filter' is invalid"), apierrors.IsBadRequest},
	} {
		rest.Tails.Set(tails{test.err})
		if _, err := open("joe", &eventingv1.BrokerTailOptions{}); !test.check(err) {
			t.Errorf("%v: %v", test.err, err)
		}
	}
	if len(asked) > 0 {
		t.Errorf("asked for permissions %q without data", asked)
	}
	rest.Tails.Set(tails{})
	stream, err := open("jane", &eventingv1.BrokerTailOptions{Data: true, Filter: "TRUE"})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if want := "jane get brokers/data.eventing.knative.dev shop/orders"; strings.Join(asked, ",") != want {
		t.Errorf("asked for permissions %q, want %s", asked, want)
	}
	close(stopping)
	read, err := io.ReadAll(stream)
	if want := "Broker shop/orders TRUE true\n"; err != nil || string(read) != want {
		t.Errorf("got %q, %v; want %q", read, err, want)
	}
	if _, err := open("jane", &eventingv1.BrokerTailOptions{}); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("while the server stops: %v", err)
	}
}
