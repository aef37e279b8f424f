package manifests

import (
	"encoding/base64"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestLabels checks that hack/uninstall.sh finds all objects by their labels.
func TestLabels(t *testing.T) {
	each(t, func(t *testing.T, objects objects) {
		for _, object := range objects {
			labels := object.GetLabels()
			if labels["app.kubernetes.io/name"] != "knative-apiserver" || labels["app.kubernetes.io/part-of"] != "knative-apiserver" || labels["app.kubernetes.io/component"] == "" {
				t.Errorf("%s %s has the labels %v", object.GetKind(), object.GetName(), labels)
			}
			if n := object.GetNamespace(); n != "" && n != system && object.GetKind() != "RoleBinding" {
				t.Errorf("%s %s is in namespace %s", object.GetKind(), object.GetName(), n)
			}
		}
		for _, w := range workloads(t, objects) {
			if w.container(t).Image != "knative-apiserver" {
				t.Errorf("%s has an image that hack/install.sh does not replace: %s", w.name, w.container(t).Image)
			}
		}
	})
}

// TestFairness checks that requests to Knative groups have their own priority level, with a queue per namespace and without borrowing.
// Requests of Knative components have another one.
func TestFairness(t *testing.T) {
	each(t, func(t *testing.T, objects objects) {
		levels := of[flowcontrolv1.PriorityLevelConfiguration](t, objects, "PriorityLevelConfiguration")
		slices.SortFunc(levels, func(a, b *flowcontrolv1.PriorityLevelConfiguration) int { return strings.Compare(a.Name, b.Name) })
		if len(levels) != 2 || levels[0].Name != "knative" || levels[0].Spec.Limited == nil || levels[0].Spec.Limited.LimitResponse.Queuing == nil {
			t.Fatalf("priority levels are %+v", levels)
		}
		if b := levels[0].Spec.Limited.BorrowingLimitPercent; b == nil || *b != 0 {
			t.Errorf("a flood may borrow from others: %v", b)
		}
		for _, schema := range of[flowcontrolv1.FlowSchema](t, objects, "FlowSchema") {
			if schema.Spec.PriorityLevelConfiguration.Name != levels[0].Name {
				continue
			}
			if schema.Spec.DistinguisherMethod.Type != flowcontrolv1.FlowDistinguisherMethodByNamespaceType {
				t.Errorf("FlowSchema %s distinguishes flows by %s", schema.Name, schema.Spec.DistinguisherMethod.Type)
			}
			// Garbage collection and namespace deletion (800, 900) come before tenants, whose default is 9000.
			if p := schema.Spec.MatchingPrecedence; p <= 900 || p >= 9000 {
				t.Errorf("FlowSchema %s has precedence %d", schema.Name, p)
			}
		}
	})
}

// TestTrust checks that for each of the three kinds of serving certificates, the manifests state which authority kube-aggregator trusts.
func TestTrust(t *testing.T) {
	const inject, certManager = "knative-apiserver/inject-ca", "cert-manager.io/inject-ca-from"
	check := func(t *testing.T, objects objects, want func(s *unstructured.Unstructured) bool) {
		t.Helper()
		found := 0
		for _, object := range objects {
			if object.GetKind() != "APIService" {
				continue
			}
			found++
			if _, skips, _ := unstructured.NestedBool(object.Object, "spec", "insecureSkipTLSVerify"); skips || !want(object) {
				t.Errorf("%s: %v", object.GetName(), object.Object)
			}
		}
		if found != 6 {
			t.Errorf("got %d APIServices", found)
		}
	}
	bundle := func(s *unstructured.Unstructured) string {
		value, _, _ := unstructured.NestedString(s.Object, "spec", "caBundle")
		return value
	}
	each(t, func(t *testing.T, objects objects) {
		check(t, objects, func(s *unstructured.Unstructured) bool { return s.GetLabels()[inject] == "true" && bundle(s) == "" })
	})
	for _, variant := range variants {
		t.Run(variant+" with own-certificate", func(t *testing.T) {
			objects := overlay(t, variant, "own-certificate")
			check(t, objects, func(s *unstructured.Unstructured) bool {
				return s.GetLabels()[inject] == "false" && bundle(s) == base64.StdEncoding.EncodeToString([]byte("authority"))
			})
			checkServingCertificate(t, objects)
		})
		t.Run(variant+" with cert-manager", func(t *testing.T) {
			objects := overlay(t, variant, "cert-manager")
			check(t, objects, func(s *unstructured.Unstructured) bool {
				return s.GetLabels()[inject] == "false" && s.GetAnnotations()[certManager] == system+"/knative-apiserver" && bundle(s) == ""
			})
			checkServingCertificate(t, objects)
		})
	}
}

// checkServingCertificate: the API server reads the files of the Secret it mounts, without the authority's.
func checkServingCertificate(t *testing.T, objects objects) {
	t.Helper()
	for _, w := range workloads(t, objects) {
		if w.name != "knative-apiserver" {
			continue
		}
		c := w.container(t)
		i := slices.IndexFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "serving-cert" })
		j := slices.IndexFunc(w.template.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == "serving-cert" })
		if i < 0 || j < 0 || len(w.template.Spec.Volumes[j].Secret.Items) != 2 {
			t.Fatalf("%s does not mount the certificate", w.name)
		}
		for _, flag := range []string{"--tls-cert-file=", "--tls-private-key-file="} {
			if !slices.ContainsFunc(c.Args, func(arg string) bool { return strings.HasPrefix(arg, flag+c.VolumeMounts[i].MountPath+"/") }) {
				t.Errorf("%s does not get %s", w.name, flag)
			}
		}
	}
}
