package images

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/knative-apiserver/knative-apiserver/pkg/egress"
)

// retries limits the retries after transient errors of a registry, because the Deployment waits for the result.
var retries = remote.Backoff{Duration: 200 * time.Millisecond, Factor: 3, Steps: 2}

// fetch reads an image from its registry, with each credential in turn until one is accepted.
func (r *Resolver) fetch(ctx context.Context, q question, reference name.Reference) (Image, error) {
	var refused error
	for _, credential := range r.credentials(ctx, q.pull, reference.Context()) {
		image, err := r.fetchAs(ctx, q.pull.Namespace, credential, reference)
		if err == nil || !isRefusal(err) {
			return image, err
		}
		refused = err
	}
	return Image{}, refused
}

func (r *Resolver) fetchAs(ctx context.Context, namespace string, credential authn.Authenticator, reference name.Reference) (Image, error) {
	responses := &responses{registryTransport: r.transport, budget: r.options.Budget, namespace: namespace}
	defer responses.release()
	options := []remote.Option{
		remote.WithContext(ctx), remote.WithAuth(credential), remote.WithRetryBackoff(retries),
		remote.WithTransport(responses),
		remote.WithPlatform(v1.Platform{OS: "linux", Architecture: runtime.GOARCH}),
	}
	descriptor, err := remote.Get(reference, options...)
	if err != nil {
		return Image{}, err
	}
	image := Image{Reference: reference.Context().Digest(descriptor.Digest.String()).String()}
	if user, err := userOf(descriptor); err == nil {
		image.User, image.Known = user, true
	}
	return image, nil
}

// userOf reads the configuration of an image. In an index, it selects the image for this server's platform.
func userOf(descriptor *remote.Descriptor) (string, error) {
	image, err := descriptor.Image()
	if err != nil {
		return "", fmt.Errorf("read manifest: %w", err)
	}
	// Reading the configuration allocates the size that the manifest states.
	manifest, err := image.Manifest()
	if err != nil {
		return "", fmt.Errorf("read manifest: %w", err)
	}
	if manifest.Config.Size > maxConfig {
		return "", fmt.Errorf("read configuration of %d bytes: %w", manifest.Config.Size, errTooLarge)
	}
	config, err := image.ConfigFile()
	if err != nil {
		return "", fmt.Errorf("read configuration: %w", err)
	}
	return config.Config.User, nil
}

// status returns the HTTP status of a registry's response, or 0.
func status(err error) int {
	var failure *transport.Error
	if errors.As(err, &failure) {
		return failure.StatusCode
	}
	return 0
}

func isMissing(err error) bool { return status(err) == http.StatusNotFound }

// isUnreachable reports whether an error concerns the whole registry instead of one image.
func isUnreachable(err error) bool {
	var network net.Error
	return status(err) == 0 && !errors.Is(err, egress.ErrRefused) && errors.As(err, &network)
}

func isRefusal(err error) bool {
	return status(err) == http.StatusUnauthorized || status(err) == http.StatusForbidden
}
