// Package images resolves the images of Revisions: tags to digests, so that a moved tag does not change a running Revision,
// and the users that images run as. It uses the pull secrets of the Pod and of its ServiceAccount.
package images

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/egress"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
	"github.com/knative-apiserver/knative-apiserver/pkg/shorten"
)

const (
	// answerTTL is the time for which an answer is reused. It is short because tags may move.
	answerTTL = 5 * time.Second
	// unreachableTTL is the time for which an unreachable registry receives no further requests.
	unreachableTTL = 20 * time.Second
	// concurrency bounds the requests to registries in flight, concurrencyPerNamespace the requests of one namespace.
	concurrency, concurrencyPerNamespace = 16, 4
)

func newQueue() *flow.Queue {
	return flow.NewQueue(flow.QueueOptions{Concurrency: concurrency, PerTenant: concurrencyPerNamespace})
}

const notReachable = "its registry was not reachable a moment ago"

// neverResolved are registries that do not exist: their images are loaded into the nodes directly.
var neverResolved = []string{"dev.local", "kind.local", "ko.local"}

// Options configure a Resolver.
type Options struct {
	// Client reads ServiceAccounts and pull secrets from the host cluster. Required.
	Client kubernetes.Interface
	// Settings returns the operator's current settings. Required.
	Settings func() *settings.Settings
	// Guard decides which addresses of registries are allowed. Required.
	Guard *egress.Guard
	// Budget bounds the memory of responses of registries. Nil means no bound.
	Budget *flow.Budget
	// Clock defaults to the real one.
	Clock  clock.PassiveClock
	Logger klog.Logger
}

// Pull identifies the pull secrets for an image. Comparable.
type Pull struct {
	Namespace, ServiceAccount string
	// Secrets are the names of the Pod's pull secrets, separated by commas.
	Secrets string
}

// Image describes an image as far as it is known.
type Image struct {
	// Reference is by digest if the image was resolved, and unchanged otherwise.
	Reference string
	// User is the user of the image's configuration, a name or number with an optional group. If Known is true, empty means
	// root.
	User string
	// Known reports whether User is known.
	Known bool
	// Warning is a sentence that describes why Reference is not by digest, or empty.
	Warning string
}

// NonRoot reports whether the kubelet can verify that the image's user is not root, which requires a number.
func (i *Image) NonRoot() bool {
	user, _, _ := strings.Cut(i.User, ":")
	id, err := strconv.ParseInt(user, 10, 64)
	return i.Known && err == nil && id != 0
}

// Root reports whether the image is known to run as root.
func (i *Image) Root() bool {
	user, _, _ := strings.Cut(i.User, ":")
	if id, err := strconv.ParseInt(user, 10, 64); err == nil {
		return id == 0
	}
	return user == "" || user == "root"
}

// MissingError is returned if a registry does not have an image.
type MissingError struct {
	Image string
	Err   error
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("Unable to fetch image %q: %v", e.Image, e.Err)
}
func (e *MissingError) Unwrap() error { return e.Err }

// Resolver reads images from registries. It may be used concurrently.
type Resolver struct {
	options   Options
	transport *registryTransport
	// queue schedules requests by namespace, so that slow registries of one namespace do not delay others.
	queue *flow.Queue

	// mu guards the fields below.
	mu      sync.Mutex
	answers map[question]*answer
	// unreachable has the times until which unreachable registries receive no requests.
	unreachable map[string]time.Time
}

type question struct {
	pull  Pull
	image string
}

// answer is the result of a question. It is complete when done is closed.
type answer struct {
	done chan struct{}
	// waiting counts the waiting callers. cancel cancels the resolution if none is left.
	waiting int
	cancel  context.CancelFunc
	at      time.Time
	image   Image
	err     error
}

// New returns a Resolver.
func New(options Options) *Resolver {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	return &Resolver{
		options: options, transport: newTransport(options.Guard), queue: newQueue(),
		answers: map[question]*answer{}, unreachable: map[string]time.Time{},
	}
}

// Resolve returns the description of an image. The error is a *MissingError or the error of ctx. If the registry is
// unreachable or refuses the request, the image keeps its reference and gets a Warning: the nodes may have credentials that
// this server does not have.
func (r *Resolver) Resolve(ctx context.Context, pull Pull, image string) (Image, error) {
	a := r.ask(ctx, question{pull, image})
	select {
	case <-a.done:
		return a.image, a.err
	case <-ctx.Done():
		r.stopWaiting(question{pull, image}, a)
		return Image{}, ctx.Err()
	}
}

// stopWaiting removes a waiting caller. The resolution is canceled after the last one.
func (r *Resolver) stopWaiting(q question, a *answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a.waiting--; a.waiting == 0 && a.at.IsZero() {
		a.cancel()
		if r.answers[q] == a {
			delete(r.answers, q)
		}
	}
}

// ask returns the answer to a question. Concurrent callers share it, and later ones for answerTTL.
func (r *Resolver) ask(ctx context.Context, q question) *answer {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.options.Clock.Now()
	for other, a := range r.answers {
		if !a.at.IsZero() && now.Sub(a.at) >= answerTTL {
			delete(r.answers, other)
		}
	}
	if a := r.answers[q]; a != nil {
		a.waiting++
		return a
	}
	// The resolution outlives its first caller while others wait.
	resolving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	a := &answer{done: make(chan struct{}), waiting: 1, cancel: cancel}
	r.answers[q] = a
	go func() {
		defer cancel()
		image, err := r.resolve(resolving, q)
		r.mu.Lock()
		defer r.mu.Unlock()
		a.image, a.err, a.at = image, err, r.options.Clock.Now()
		close(a.done)
	}()
	return a
}

func (r *Resolver) resolve(ctx context.Context, q question) (Image, error) {
	reference, err := name.ParseReference(q.image, name.WeakValidation)
	if err != nil {
		return Image{}, &MissingError{q.image, err}
	}
	registry := reference.Context().RegistryStr()
	asGiven := Image{Reference: q.image}
	if r.skips(registry) {
		return asGiven, nil
	}
	if r.avoids(registry) {
		return r.degraded(reference, notReachable), nil
	}
	if err := r.queue.Acquire(ctx, q.pull.Namespace, 1); err != nil {
		return Image{}, err
	}
	defer r.queue.Release(q.pull.Namespace)
	if r.avoids(registry) {
		// The registry became unreachable while this resolution was queued.
		return r.degraded(reference, notReachable), nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.options.Settings().Deployment.DigestTimeout)
	defer cancel()
	image, err := r.fetch(ctx, q, reference)
	switch {
	case err == nil:
		return image, nil
	case isMissing(err):
		return Image{}, &MissingError{q.image, reason(err)}
	case errors.Is(ctx.Err(), context.Canceled):
		return Image{}, ctx.Err()
	case isUnreachable(err):
		r.avoid(registry)
	}
	r.options.Logger.Info("Failed to resolve image tag", "image", q.image, "namespace", q.pull.Namespace, "error", shorten.Text(err.Error(), maxLogged))
	return r.degraded(reference, reason(err).Error()), nil
}

// degraded returns an image without information from its registry.
func (r *Resolver) degraded(reference name.Reference, why string) Image {
	image := Image{Reference: reference.String()}
	if _, ok := reference.(name.Digest); !ok {
		image.Warning = fmt.Sprintf("The tag of image %q was not resolved to a digest: %s", reference, shorten.Text(why, maxReason))
	}
	return image
}

func (r *Resolver) skips(registry string) bool {
	return slices.Contains(neverResolved, registry) || slices.Contains(r.options.Settings().Deployment.SkipTagResolving, registry)
}

func (r *Resolver) avoids(registry string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.options.Clock.Now().Before(r.unreachable[registry])
}

func (r *Resolver) avoid(registry string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.options.Clock.Now()
	for other, until := range r.unreachable {
		if now.After(until) {
			delete(r.unreachable, other)
		}
	}
	r.unreachable[registry] = now.Add(unreachableTTL)
}
