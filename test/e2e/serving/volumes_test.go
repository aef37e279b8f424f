package serving

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// configure creates a ConfigMap and a Secret, and returns references to them.
func (s *space) configure(t *testing.T) (config, secret corev1.LocalObjectReference) {
	t.Helper()
	s.apply(t, &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "config"},
		Data:       map[string]string{"greeting": "good day", "COLOUR": "green"},
	})
	s.apply(t, &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "secret"},
		Data:       map[string][]byte{"password": []byte("sesame"), "PIN": []byte("1234")},
	})
	return corev1.LocalObjectReference{Name: "config"}, corev1.LocalObjectReference{Name: "secret"}
}

// mount adds a volume to the first container.
func mount(path string, source corev1.VolumeSource) option {
	return pod(func(spec *corev1.PodSpec) {
		name := strings.Trim(strings.ReplaceAll(path, "/", "-"), "-")
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
		spec.Containers[0].VolumeMounts = append(spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: name, MountPath: path, ReadOnly: source.EmptyDir == nil})
	})
}

// file returns the path at which the application serves the content of a file.
func file(service, path string) string { return service + "/file?path=" + url.QueryEscape(path) }

// claims are the claims of a token, which is not verified.
func claims(t *testing.T, token string) map[string]any {
	t.Helper()
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		t.Fatalf("%q must be a token", token)
	}
	content, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	return decoded[map[string]any](t, string(content))
}

// TestVolumes covers each kind of volume that is allowed by default, and values of ConfigMaps and Secrets as environment
// variables: the container reads their content.
func TestVolumes(t *testing.T) {
	t.Parallel()
	s := newSpace(t, "volumes", nil)
	config, secret := s.configure(t)
	service := s.deploy(t, s.app("hello",
		mount("/config", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: config}}),
		mount("/secret", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: secret.Name, Items: []corev1.KeyToPath{{Key: "password", Path: "deep/word"}}}}),
		mount("/projected", corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: config, Items: []corev1.KeyToPath{{Key: "greeting", Path: "greeting"}}}},
			{Secret: &corev1.SecretProjection{LocalObjectReference: secret}},
			{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.namespace"}}}}},
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: "vault", Path: "token", ExpirationSeconds: ptr.To[int64](3600)}},
		}}}),
		mount("/scratch", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}),
		container(func(c *corev1.Container) {
			c.EnvFrom = []corev1.EnvFromSource{
				{Prefix: "CONFIG_", ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: config}},
				{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: secret}},
			}
			c.Env = []corev1.EnvVar{
				{Name: "TARGET", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: secret, Key: "password"}}},
				{Name: "SHADE", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: config, Key: "COLOUR"}}},
			}
		}),
	))
	address := service.Status.URL
	for path, want := range map[string]string{
		"/config/greeting": "good day", "/config/COLOUR": "green", "/secret/deep/word": "sesame",
		"/projected/greeting": "good day", "/projected/PIN": "1234", "/projected/namespace": s.namespace,
	} {
		if got := s.get(t, file(address, path)); got != want {
			t.Errorf("%s has %q, want %q", path, got, want)
		}
	}
	environment := decoded[infoReport](t, s.get(t, address+"/info")).Env
	for name, want := range map[string]string{"CONFIG_COLOUR": "green", "PIN": "1234", "TARGET": "sesame", "SHADE": "green"} {
		if environment[name] != want {
			t.Errorf("%s is %q, want %q", name, environment[name], want)
		}
	}
	if a, err := ask(t.Context(), s.http, http.MethodPut, file(address, "/scratch/note"), nil, strings.NewReader("kept")); err != nil || a.code != http.StatusNoContent {
		t.Errorf("writing to an emptyDir: %+v, %v", a, err)
	}
	if got := s.get(t, file(address, "/scratch/note")); got != "kept" {
		t.Errorf("the emptyDir has %q", got)
	}
	if got := claims(t, s.get(t, file(address, "/projected/token"))); got["sub"] != "system:serviceaccount:"+s.namespace+":default" || fmt.Sprint(got["aud"]) != "[vault]" {
		t.Errorf("the projected token is for %v of %v", got["aud"], got["sub"])
	}
}

// TestServiceAccount checks that the container can read the token of the Pod's service account as any user of the image, unless
// that is disabled.
func TestServiceAccount(t *testing.T) {
	t.Parallel()
	const path = "/var/run/secrets/kubernetes.io/serviceaccount/token"
	s := newSpace(t, "account", nil)
	s.apply(t, &corev1.ServiceAccount{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "clerk"},
	})
	account := pod(func(spec *corev1.PodSpec) { spec.ServiceAccountName = "clerk" })
	with := s.deploy(t, s.app("with", account))
	if got, want := claims(t, s.get(t, file(with.Status.URL, path)))["sub"], "system:serviceaccount:"+s.namespace+":clerk"; got != want {
		t.Errorf("the token belongs to %v, want %s", got, want)
	}
	without := s.deploy(t, s.app("without", account, pod(func(spec *corev1.PodSpec) { spec.AutomountServiceAccountToken = ptr.To(false) })))
	a, err := ask(t.Context(), s.http, http.MethodGet, file(without.Status.URL, path), nil, nil)
	if err != nil || a.code != http.StatusInternalServerError || !strings.Contains(a.body, "no such file") {
		t.Errorf("without automountServiceAccountToken reading the token got %+v, %v", a, err)
	}
}
