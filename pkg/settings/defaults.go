package settings

import (
	"fmt"
	"strings"
	"text/template"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// DefaultsConfigMapName is the name of the ConfigMap with the defaults of revision templates.
const DefaultsConfigMapName = "config-defaults"

const (
	keyTimeout              = "revision-timeout-seconds"
	keyMaxTimeout           = "max-revision-timeout-seconds"
	keyResponseStartTimeout = "revision-response-start-timeout-seconds"
	keyIdleTimeout          = "revision-idle-timeout-seconds"
	keyConcurrency          = "container-concurrency"
	keyMaxConcurrency       = "container-concurrency-max-limit"
)

// parseDefaults sets the values of config-defaults in s.
func parseDefaults(p *parser, s *Settings) error {
	d := &s.API

	const positive, optional = "a whole number of seconds, 1 or more", "a whole number of seconds, or 0 for none"
	read(p, &d.TimeoutSeconds, seconds(1), positive, keyTimeout)
	read(p, &d.MaxTimeoutSeconds, seconds(1), positive, keyMaxTimeout)
	read(p, &d.ResponseStartTimeoutSeconds, seconds(0), optional, keyResponseStartTimeout)
	read(p, &d.IdleTimeoutSeconds, seconds(0), optional, keyIdleTimeout)
	p.check(d.TimeoutSeconds <= d.MaxTimeoutSeconds, keyTimeout, "be at most '%s' (%d), not %d", keyMaxTimeout, d.MaxTimeoutSeconds, d.TimeoutSeconds)
	p.check(d.ResponseStartTimeoutSeconds <= d.TimeoutSeconds, keyResponseStartTimeout, "be at most '%s' (%d), not %d", keyTimeout, d.TimeoutSeconds, d.ResponseStartTimeoutSeconds)
	p.check(d.IdleTimeoutSeconds <= d.TimeoutSeconds, keyIdleTimeout, "be at most '%s' (%d), not %d", keyTimeout, d.TimeoutSeconds, d.IdleTimeoutSeconds)

	read(p, &d.ContainerConcurrency, whole[int64](0), "a whole number of at least 0", keyConcurrency)
	read(p, &d.MaxContainerConcurrency, whole[int64](1), "a whole number of at least 1", keyMaxConcurrency)
	read(p, &d.AllowZeroContainerConcurrency, boolean, "true or false", "allow-container-concurrency-zero")
	p.check(d.ContainerConcurrency <= d.MaxContainerConcurrency, keyConcurrency, "be at most '%s' (%d), not %d", keyMaxConcurrency, d.MaxContainerConcurrency, d.ContainerConcurrency)

	parseResources(p, d)
	read(p, &d.EnableServiceLinks, parseServiceLinks, "'true', 'false' or 'default'", "enable-service-links")
	// Validated only: apply identifies containers by name, and the published schema contains the default names.
	var unused *template.Template
	const name = "a text/template that renders the metadata of a Service or Configuration as a DNS label"
	read(p, &unused, parseNameTemplate, name, "container-name-template")
	read(p, &unused, parseNameTemplate, name, "init-container-name-template")
	return p.done()
}

// seconds parses a number of seconds of at least lower. Larger values than an int32 would overflow a Duration.
func seconds(lower int32) func(string) (int64, bool) {
	return func(value string) (int64, bool) {
		n, ok := whole(lower)(value)
		return int64(n), ok
	}
}

// parseResources parses the default resource requests and limits of containers.
func parseResources(p *parser, d *servingv1.Settings) {
	d.Requests, d.Limits = corev1.ResourceList{}, corev1.ResourceList{}
	for _, of := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		keyRequest, keyLimit := fmt.Sprintf("revision-%s-request", of), fmt.Sprintf("revision-%s-limit", of)
		readQuantity(p, d.Requests, of, keyRequest)
		readQuantity(p, d.Limits, of, keyLimit)
		if limit, limited := d.Limits[of]; limited {
			request := d.Requests[of]
			p.check(request.Cmp(limit) <= 0, keyRequest, "be at most '%s' (%s), not %s", keyLimit, limit.String(), request.String())
		}
	}
}

func readQuantity(p *parser, list corev1.ResourceList, of corev1.ResourceName, key string) {
	var quantity *resource.Quantity
	read(p, &quantity, parseQuantity, "a quantity of at least 0, such as 400m or 128Mi", key)
	if quantity != nil {
		list[of] = *quantity
	}
}

// parseQuantity parses a quantity. An empty value means none.
func parseQuantity(value string) (*resource.Quantity, bool) {
	if value == "" {
		return nil, true
	}
	q, err := resource.ParseQuantity(value)
	return &q, err == nil && q.Sign() >= 0
}

// parseServiceLinks parses enable-service-links. "default" means the host's default.
func parseServiceLinks(value string) (*bool, bool) {
	if strings.EqualFold(value, "default") {
		return nil, true
	}
	enabled, ok := boolean(value)
	return ptr.To(enabled), ok
}

// parseNameTemplate parses and tests the template of a container's name.
func parseNameTemplate(text string) (*template.Template, bool) {
	t, err := parseTemplate(text)
	if err != nil {
		return nil, false
	}
	for _, sample := range []map[string]string{{}, sampleValues(text)} {
		var name strings.Builder
		meta := &metav1.ObjectMeta{Name: "a", Namespace: "b", Labels: sample, Annotations: sample}
		if t.Execute(&name, meta) == nil && len(validation.IsDNS1123Label(name.String())) == 0 {
			return t, true
		}
	}
	return nil, false
}
