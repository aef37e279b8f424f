package kubernetes

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/kubernetes/images"
)

const (
	// enforceLabelKey on a Namespace names the Pod Security level of the Pods that it admits.
	enforceLabelKey = "pod-security.kubernetes.io/enforce"
	levelRestricted = "restricted"
	levelBaseline   = "baseline"
	// levelTimeout bounds the time to read a Namespace from the host.
	levelTimeout = 5 * time.Second
)

// resolution describes the images of a Revision and the restrictions of its namespace. Immutable.
type resolution struct {
	// images are the images by container name.
	images map[string]*images.Image
	// warning describes why an image is not by digest, or is empty.
	warning string
	// restricted is true if the namespace admits only Pods of the restricted Pod Security level, local if it rejects hooks
	// that call other hosts, as the baseline level does. They are only determined if they affect the Pods.
	restricted, local bool
}

// resolution resolves all images concurrently. Digests in the Revision's status are kept.
func (rt *Runtime) resolution(ctx context.Context, revision *servingv1.Revision) (*resolution, error) {
	spec := &revision.Spec.PodSpec
	known := map[string]string{}
	for _, status := range slices.Concat(revision.Status.ContainerStatuses, revision.Status.InitContainerStatuses) {
		known[status.Name] = status.ImageDigest
	}
	containers := slices.Concat(spec.InitContainers, spec.Containers)
	results := make([]images.Image, len(containers))
	pull := images.Pull{Namespace: revision.Namespace, ServiceAccount: spec.ServiceAccountName, Secrets: secretNames(spec.ImagePullSecrets)}
	group, asking := errgroup.WithContext(ctx)
	for i := range containers {
		image := containers[i].Image
		if digest := known[containers[i].Name]; digest != "" {
			image = digest
		}
		group.Go(func() (err error) {
			results[i], err = rt.options.Images.Resolve(asking, pull, image)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	found := &resolution{images: make(map[string]*images.Image, len(containers))}
	allNonRoot := true
	for i := range containers {
		found.images[containers[i].Name] = &results[i]
		found.warning = join(found.warning, results[i].Warning)
		allNonRoot = allNonRoot && results[i].NonRoot()
	}
	if !allNonRoot || rt.options.DrainAddress != nil {
		level, err := rt.level(ctx, revision.Namespace)
		if err != nil {
			return nil, err
		}
		found.restricted, found.local = level == levelRestricted, level == levelRestricted || level == levelBaseline
	}
	return found, nil
}

// level returns the Pod Security level that a namespace enforces. It is read from the host directly, because a Deployment
// for a wrong level is never corrected.
func (rt *Runtime) level(ctx context.Context, namespace string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, levelTimeout)
	defer cancel()
	found, err := rt.client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("read Pod Security level of namespace %q: %w", namespace, err)
	}
	return found.Labels[enforceLabelKey], nil
}

func secretNames(references []corev1.LocalObjectReference) string {
	names := make([]string, len(references))
	for i := range references {
		names[i] = references[i].Name
	}
	return strings.Join(names, ",")
}

func join(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return fmt.Sprintf("%s. %s", a, b)
}
