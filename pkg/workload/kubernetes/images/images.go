// Package images finds out what the images of a Revision are: their digests, so that a tag that moves does not
// change what runs, and the users that they run as. Registries are asked with the pull secrets of the Pod and of its
// service account.
package images

import (
	"context"
	"errors"
	"fmt"
	"net/http"
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
)

const (
	// remembered is how long an answer serves others who ask the same. A tag may move: it is short.
	remembered = 5 * time.Second
	// avoided is how long a registry that could not be reached is not asked again.
	avoided = 20 * time.Second
	// concurrency bounds the requests to registries in flight, concurrencyPerNamespace the requests of one namespace.
	concurrency, concurrencyPerNamespace = 16, 4
)

func newQueue() *flow.Queue {
	return flow.NewQueue(flow.QueueOptions{Concurrency: concurrency, PerTenant: concurrencyPerNamespace})
}

const notReachable = "its registry was not reachable a moment ago"

// neverResolved are registries that exist by name only: their images are put on the nodes by hand.
var neverResolved = []string{"dev.local", "kind.local", "ko.local"}

// Options are what a Resolver needs.
type Options struct {
	// Client reaches the host cluster for service accounts and pull secrets. Required.
	Client kubernetes.Interface
	// Settings returns the operator's choices of now. Required.
	Settings func() *settings.Settings
	// Guard decides which addresses registries may have. Required.
	Guard *egress.Guard
	// Clock defaults to the real one.
	Clock  clock.PassiveClock
	Logger klog.Logger
}

// Pull is whose pull secrets an image is asked for with. Comparable.
type Pull struct {
	Namespace, ServiceAccount string
	// Secrets are the names of the Pod's own, separated by commas.
	Secrets string
}

// Image is the known configuration of an image.
type Image struct {
	// Reference is by digest, or as it was given where that could not be found out.
	Reference string
	// User is what the image runs as: a name or number, with or without a group; empty means root where Known is
	// set.
	User string
	// Known is true if User is known.
	Known bool
	// Warning is a sentence about why Reference is not by digest, or empty.
	Warning string
}

// NonRoot reports whether the image runs as a user whom the kubelet knows not to be root: one with a number.
func (i *Image) NonRoot() bool {
	user, _, _ := strings.Cut(i.User, ":")
	id, err := strconv.ParseInt(user, 10, 64)
	return i.Known && err == nil && id != 0
}

// Root reports whether the image runs as root, as far as is known.
func (i *Image) Root() bool {
	user, _, _ := strings.Cut(i.User, ":")
	if id, err := strconv.ParseInt(user, 10, 64); err == nil {
		return id == 0
	}
	return user == "" || user == "root"
}

// MissingError is that a registry has no such image.
type MissingError struct {
	Image string
	Err   error
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("Unable to fetch image %q: %v", e.Image, e.Err)
}
func (e *MissingError) Unwrap() error { return e.Err }

// Resolver asks registries about images. It may be used concurrently.
type Resolver struct {
	options   Options
	transport http.RoundTripper
	// queue schedules the requests to registries by namespace: a slow registry of one does not delay the others.
	queue *flow.Queue

	// mu guards what follows.
	mu      sync.Mutex
	answers map[question]*answer
	// unreachable is until when registries are not asked.
	unreachable map[string]time.Time
}

type question struct {
	pull  Pull
	image string
}

// answer is there when done is closed.
type answer struct {
	done chan struct{}
	// waiting counts the callers that wait for it. cancel ends the resolution when none is left.
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

// Resolve returns what is known of an image. The error is a *MissingError, or that of ctx: a registry that cannot be
// reached, or refuses to answer, leaves the image as it was given, with a Warning. What the credentials of the nodes
// are allowed to pull is only known to them.
func (r *Resolver) Resolve(ctx context.Context, pull Pull, image string) (Image, error) {
	a := r.ask(ctx, question{pull, image})
	select {
	case <-a.done:
		return a.image, a.err
	case <-ctx.Done():
		r.leave(question{pull, image}, a)
		return Image{}, ctx.Err()
	}
}

// leave removes a caller that waits for an answer. The resolution is canceled after the last one.
func (r *Resolver) leave(q question, a *answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a.waiting--; a.waiting == 0 && a.at.IsZero() {
		a.cancel()
		if r.answers[q] == a {
			delete(r.answers, q)
		}
	}
}

// ask returns the answer to a question, which callers at about the same time share.
func (r *Resolver) ask(ctx context.Context, q question) *answer {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.options.Clock.Now()
	for other, a := range r.answers {
		if !a.at.IsZero() && now.Sub(a.at) >= remembered {
			delete(r.answers, other)
		}
	}
	if a := r.answers[q]; a != nil {
		a.waiting++
		return a
	}
	// The first caller may be canceled before the others.
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
	if err := r.queue.Acquire(ctx, q.pull.Namespace); err != nil {
		return Image{}, err
	}
	defer r.queue.Release(q.pull.Namespace)
	if r.avoids(registry) {
		// It was found out while this one waited.
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
	r.options.Logger.Info("Failed to resolve image tag", "image", q.image, "namespace", q.pull.Namespace, "error", shortened(err.Error(), maxLogged))
	return r.degraded(reference, reason(err).Error()), nil
}

// degraded is an image about which a registry said nothing.
func (r *Resolver) degraded(reference name.Reference, why string) Image {
	image := Image{Reference: reference.String()}
	if _, ok := reference.(name.Digest); !ok {
		image.Warning = fmt.Sprintf("The tag of image %q was not resolved to a digest: %s", reference, shortened(why, maxReason))
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
	r.unreachable[registry] = now.Add(avoided)
}
