package broker

import (
	"context"
	"errors"
	"fmt"
	"io"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry"
)

// Tails shows the events of Brokers live.
type Tails interface {
	// Tail returns the events that a Broker accepts from now on as lines of JSON, until ctx or the Broker ends. Errors match ErrTooManyTails,
	// ErrTailUnavailable, or are about the options.
	Tail(ctx context.Context, broker eventing.Key, options *eventingv1.BrokerTailOptions) (io.ReadCloser, error)
}

// Errors of Tails. Their messages are for users.
var (
	ErrTooManyTails    = errors.New("too many tails are open")
	ErrTailUnavailable = errors.New("the Broker is not available at the moment; retry")
)

// LateTails are Tails that are set after the API is served, or never. The zero value has none.
type LateTails = registry.Late[Tails]

// tailRetrySeconds is the value of Retry-After.
const tailRetrySeconds = 10

// DataSubresource names the permission to read the data of events: get of brokers/data. It is not served.
const DataSubresource = "data"

// Tail is the subresource tail: accepted events as lines of JSON.
type Tail struct {
	Brokers rest.Getter
	Tails   *LateTails
	// Authorizer decides about the data of events. Nil denies it.
	Authorizer authorizer.Authorizer
	// Stopping is closed before the server stops, and ends all tails. Nil never closes.
	Stopping <-chan struct{}
}

var (
	_ rest.GetterWithOptions = &Tail{}
	_ rest.StorageMetadata   = &Tail{}
)

// New returns an empty object of the parent resource's kind.
func (*Tail) New() runtime.Object { return &eventingv1.Broker{} }

// Destroy does nothing: the resource Brokers owns the store.
func (*Tail) Destroy() {}

// NewGetOptions returns empty options. The resource has no subpaths.
func (*Tail) NewGetOptions() (runtime.Object, bool, string) {
	return &eventingv1.BrokerTailOptions{}, false, ""
}

// tailMediaType is the content type of lines of JSON.
const tailMediaType = "application/x-ndjson"

// ProducesMIMETypes returns the content type.
func (*Tail) ProducesMIMETypes(string) []string { return []string{tailMediaType} }

// ProducesObject returns a string: tails are text.
func (*Tail) ProducesObject(string) any { return "" }

// Get reads the Broker and returns the stream of its events.
func (t *Tail) Get(ctx context.Context, name string, options runtime.Object) (runtime.Object, error) {
	asked, ok := options.(*eventingv1.BrokerTailOptions)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("options of the tail are a %T", options))
	}
	broker, err := registry.GetAs[*eventingv1.Broker](ctx, t.Brokers, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	key := eventing.Key{Kind: eventing.Broker, Namespace: request.NamespaceValue(ctx), Name: name}
	if asked.Data && !t.mayReadData(ctx, key) {
		return nil, apierrors.NewForbidden(eventingv1.Resource("brokers/"+DataSubresource), name, errors.New("parameter 'data' needs the permission to get brokers/data"))
	}
	if broker.IsForeign() {
		return nil, apierrors.NewBadRequest("the class of the Broker is implemented by another system, which has its events")
	}
	return &tailStream{tail: t, broker: key, options: asked}, nil
}

// mayReadData reports whether the user may read the data of the events of a Broker.
func (t *Tail) mayReadData(ctx context.Context, broker eventing.Key) bool {
	user, ok := request.UserFrom(ctx)
	if !ok || t.Authorizer == nil {
		return false
	}
	// Without a decision, the data is hidden.
	decision, _, _ := t.Authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: user, Verb: "get", APIGroup: eventingv1.GroupName, APIVersion: eventingv1.SchemeGroupVersion.Version, Resource: "brokers", Subresource: DataSubresource,
		Namespace: broker.Namespace, Name: broker.Name, ResourceRequest: true,
	})
	return decision == authorizer.DecisionAllow
}

// tailStream represents the events of a Broker as an object, as handlers require.
type tailStream struct {
	tail    *Tail
	broker  eventing.Key
	options *eventingv1.BrokerTailOptions
}

var _ rest.ResourceStreamer = &tailStream{}

// GetObjectKind returns the empty kind: a stream is not an API object.
func (*tailStream) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject is never called: streams cannot be copied.
func (*tailStream) DeepCopyObject() runtime.Object {
	panic("the stream of a tail cannot be copied")
}

// InputStream returns the events as lines of JSON. It ends with the request, the Broker or the server.
func (s *tailStream) InputStream(ctx context.Context, _, _ string) (io.ReadCloser, bool, string, error) {
	tails := s.tail.Tails.Load()
	if tails == nil {
		return nil, false, "", apierrors.NewServiceUnavailable("this server runs no broker, which has the events")
	}
	select {
	case <-s.tail.Stopping:
		return nil, false, "", apierrors.NewServiceUnavailable("this replica of the server is shutting down; retry")
	default:
	}
	ctx, cancel := context.WithCancel(ctx)
	stream, err := (*tails).Tail(ctx, s.broker, s.options)
	if err != nil {
		cancel()
		switch {
		case errors.Is(err, ErrTooManyTails):
			return nil, false, "", apierrors.NewTooManyRequests(err.Error(), tailRetrySeconds)
		case errors.Is(err, ErrTailUnavailable):
			return nil, false, "", apierrors.NewServiceUnavailable(err.Error())
		}
		return nil, false, "", apierrors.NewBadRequest(err.Error())
	}
	go func() {
		defer cancel()
		select {
		case <-s.tail.Stopping:
		case <-ctx.Done():
		}
	}()
	return &endingStream{stream, cancel}, true, tailMediaType, nil
}

// endingStream calls end when it is closed.
type endingStream struct {
	io.ReadCloser
	end func()
}

// Close implements io.Closer.
func (s *endingStream) Close() error {
	defer s.end()
	return s.ReadCloser.Close()
}
