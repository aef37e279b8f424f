package failures

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

const (
	resources = servingv1.RevisionConditionResourcesAvailable
	healthy   = servingv1.RevisionConditionContainerHealthy
)

// failure is an expected failure of a Revision.
type failure struct {
	// condition is the condition of the Revision that is False, like Ready, with a reason and a message that contains all
	// parts.
	condition duckv1.ConditionType
	reason    string
	parts     []string
}

// fails waits until a Service, its Configuration and the Revision report the reason why the latest Revision fails (serving
// 7.1-6, 7.2-5, 9.4.3).
func (s *space) fails(name string, want failure) *servingv1.Service {
	s.Helper()
	const revisionFailed = "RevisionFailed"
	service := s.reports(name, func(service *servingv1.Service) error {
		status := &service.Status.Status
		if err := isFalse(condition(service, status, servingv1.ServiceConditionConfigurationsReady), revisionFailed, want.parts...); err != nil {
			return err
		}
		return isFalse(condition(service, status, duckv1.ConditionReady), revisionFailed, want.parts...)
	})
	// The message may have changed since then for a moment, for example because a probe has timed out.
	s.eventually("the Configuration reports the failure", func(ctx context.Context) error {
		configuration, err := s.serving().Configurations(s.name).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		return isFalse(condition(configuration, &configuration.Status.Status, duckv1.ConditionReady), revisionFailed,
			slices.Concat(want.parts, []string{`Revision "` + service.Status.LatestCreatedRevisionName + `" failed with message: `})...)
	})
	s.eventually("the Revision reports the failure", func(ctx context.Context) error {
		revision, err := s.serving().Revisions(s.name).Get(ctx, service.Status.LatestCreatedRevisionName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		return errors.Join(
			isFalse(condition(revision, &revision.Status.Status, want.condition), want.reason, want.parts...),
			isFalse(condition(revision, &revision.Status.Status, duckv1.ConditionReady), want.reason, want.parts...))
	})
	return service
}

// TestRevisionFails checks that a Revision that never becomes ready reports the reason.
func TestRevisionFails(t *testing.T) {
	app := func(tag string) string { return node.Registry + "/test-app" + tag }
	const noDigest = "@sha256:0000000000000000000000000000000000000000000000000000000000000000"
	fromSecret := func(c *corev1.Container) {
		c.Env = []corev1.EnvVar{{Name: "TOKEN", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: "missing"}, Key: "token",
		}}}}
	}
	fromConfigMap := func(c *corev1.Container) {
		c.EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: "missing"},
		}}}
	}
	probe := func(path string) func(c *corev1.Container) {
		return func(c *corev1.Container) {
			c.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path}}}
		}
	}
	tests := map[string]struct {
		changes []change
		want    failure
	}{
		"no such repository": {
			[]change{withImage(node.Registry + "/missing:v1")},
			failure{healthy, "ContainerMissing", []string{`Unable to fetch image "` + node.Registry + `/missing:v1": `, "NAME_UNKNOWN"}},
		},
		"no such tag": {
			[]change{withImage(app(":missing"))},
			failure{healthy, "ContainerMissing", []string{`Unable to fetch image "` + app(":missing") + `": `, "MANIFEST_UNKNOWN"}},
		},
		"no such digest": {
			[]change{withImage(app(noDigest))},
			failure{healthy, "ContainerMissing", []string{`Unable to fetch image "` + app(noDigest) + `": `, "MANIFEST_UNKNOWN"}},
		},
		"registry unreachable": {
			[]change{withImage("127.0.0.1:1/app:v1")},
			failure{resources, "ImagePullBackOff", []string{`Unable to fetch image "127.0.0.1:1/app:v1": `, "connection refused"}},
		},
		"no pull secret named": {
			[]change{withImage(node.PrivateRegistry.Address + "/test-app:v1")},
			failure{resources, "ImagePullBackOff", []string{`Unable to fetch image "` + node.PrivateRegistry.Address + `/test-app:v1": `, "401 Unauthorized"}},
		},
		"pull secret missing": {
			[]change{withImage(node.PrivateRegistry.Address + "/test-app:v1"), func(template *servingv1.RevisionTemplateSpec) {
				template.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "missing"}}
			}},
			failure{resources, "ImagePullBackOff", []string{`Unable to fetch image "` + node.PrivateRegistry.Address + `/test-app:v1": `, "401 Unauthorized"}},
		},
		"listens on another port": {
			[]change{withEnv("LISTEN", ":9099")},
			failure{healthy, "Unhealthy", []string{`Container "user-container" failed its readiness probe: `, ":8080: connect: connection refused", "PORT"}},
		},
		"listens within its Pod only": {
			[]change{withEnv("LISTEN", "127.0.0.1:8080")},
			failure{healthy, "Unhealthy", []string{`Container "user-container" failed its readiness probe: `, "on all addresses"}},
		},
		"crashes at start": {
			[]change{withEnv("START_FAIL", "3:first line\nno database\n")},
			failure{healthy, "ExitCode3", []string{"Container failed with: ", "no database", "(exit code 3)"}},
		},
		"no such program": {
			[]change{container(func(c *corev1.Container) { c.Command = []string{"/missing"} })},
			failure{healthy, "ExitCode128", []string{"Container failed with: ", `"/missing"`, "no such file"}},
		},
		"Secret of a variable missing": {
			[]change{container(fromSecret)},
			failure{resources, "CreateContainerConfigError", []string{`secret "missing" not found`}},
		},
		"ConfigMap of variables missing": {
			[]change{container(fromConfigMap)},
			failure{resources, "CreateContainerConfigError", []string{`configmap "missing" not found`}},
		},
		"Secret of a volume missing": {
			[]change{withVolume(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "missing"}})},
			failure{resources, "FailedMount", []string{`volume "data"`, `secret "missing" not found`}},
		},
		"ConfigMap of a volume missing": {
			[]change{withVolume(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "missing"},
			}})},
			failure{resources, "FailedMount", []string{`volume "data"`, `configmap "missing" not found`}},
		},
		"probe of a missing path": {
			[]change{container(probe("/missing"))},
			failure{healthy, "Unhealthy", []string{`Container "user-container" failed its readiness probe: GET /missing: status 404`}},
		},
		"no node is large enough": {
			[]change{container(func(c *corev1.Container) {
				c.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1000")}
			})},
			failure{resources, "Unschedulable", []string{"Insufficient cpu"}},
		},
		"does not become ready in time": {
			[]change{
				container(func(c *corev1.Container) {
					c.ReadinessProbe = &corev1.Probe{InitialDelaySeconds: 600, ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{}}}
				}),
				func(template *servingv1.RevisionTemplateSpec) {
					template.Annotations = map[string]string{servingv1.ProgressDeadlineAnnotationKey: "4s"}
				},
			},
			failure{resources, "ProgressDeadlineExceeded", []string{"The revision did not become ready within 4s"}},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSpace(t, nil)
			s.create("app", test.changes...)
			s.fails("app", test.want)
			t.Logf("reported after %v", time.Since(s.began))
		})
	}
}

// withVolume mounts a volume.
func withVolume(source corev1.VolumeSource) change {
	return func(template *servingv1.RevisionTemplateSpec) {
		template.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: source}}
		template.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	}
}
