package certmanager

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
	"github.com/knative-apiserver/knative-apiserver/pkg/shorten"
)

const (
	// fieldManager is the field manager of Certificates.
	fieldManager = "knative-apiserver"
	// typeLabelKey is the label of the Certificates of public host names, as in Knative's releases, and externalDomain its value.
	typeLabelKey, externalDomain = "networking.knative.dev/certificate-type", "external-domain"
	// maxMessage bounds the bytes of each message of cert-manager in a State.
	maxMessage = 512
)

// isOurs reports whether a controller may be an Object.
func isOurs(controller *metav1.OwnerReference) bool {
	return schema.FromAPIVersionAndKind(controller.APIVersion, "").Group == servingv1.GroupName
}

// owns reports whether a Certificate belongs to an object. The Certificate of an earlier object of the same name belongs to it too.
func (o *Object) owns(certificate *unstructured.Unstructured) bool {
	controller := metav1.GetControllerOfNoCopy(certificate)
	return controller != nil && isOurs(controller) && controller.Kind == o.Kind.Kind && controller.Name == o.Meta.GetName()
}

// desired returns a wanted Certificate.
func desired(o *Object, issuer settings.Issuer, wanted Certificate) *unstructured.Unstructured {
	certificate := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"dnsNames":   []any{wanted.Host},
		"secretName": wanted.Name,
		"issuerRef":  map[string]any{"name": issuer.Name, "kind": issuer.Kind, "group": issuer.Group},
		// A renewed certificate has a new key, also where that is not the default.
		"privateKey": map[string]any{"rotationPolicy": "Always"},
	}}}
	certificate.SetGroupVersionKind(Resource.GroupVersion().WithKind("Certificate"))
	certificate.SetNamespace(o.Meta.GetNamespace())
	certificate.SetName(wanted.Name)
	labels := maps.Clone(o.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[typeLabelKey] = externalDomain
	certificate.SetLabels(labels)
	certificate.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(o.Meta, o.Kind)})
	return certificate
}

// adapted returns a copy of a Certificate with the desired owner, labels, host name, Secret and issuer, or nil if it has them already. All
// other fields may be set by others.
func adapted(existing, desired *unstructured.Unstructured) *unstructured.Unstructured {
	updated := existing.DeepCopy()
	labels := updated.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, desired.GetLabels())
	updated.SetLabels(labels)
	controller := metav1.GetControllerOf(desired)
	references := updated.GetOwnerReferences()
	for i, reference := range references {
		if reference.Controller != nil && *reference.Controller && reference.UID != controller.UID {
			references[i] = *controller
			updated.SetOwnerReferences(references)
		}
	}
	for _, field := range []string{"dnsNames", "secretName", "issuerRef"} {
		value, _, err := unstructured.NestedFieldCopy(desired.Object, "spec", field)
		if err == nil {
			err = unstructured.SetNestedField(updated.Object, value, "spec", field)
		}
		if err != nil {
			// The existing spec is no map; the host would reject that.
			updated.Object["spec"] = desired.Object["spec"]
		}
	}
	if equality.Semantic.DeepEqual(existing.Object, updated.Object) {
		return nil
	}
	return updated
}

// condition is a condition of a Certificate.
type condition struct {
	status, reason, message string
	// generation is the generation of the Certificate that it is about, or 0.
	generation int64
}

// conditionOf returns a condition of a Certificate; its status is empty if it does not exist.
func conditionOf(certificate *unstructured.Unstructured, kind string) condition {
	all, _, _ := unstructured.NestedSlice(certificate.Object, "status", "conditions")
	for _, one := range all {
		fields, ok := one.(map[string]any)
		if !ok || fields["type"] != kind {
			continue
		}
		var c condition
		c.status, _ = fields["status"].(string)
		c.reason, _ = fields["reason"].(string)
		c.message, _ = fields["message"].(string)
		c.generation, _ = fields["observedGeneration"].(int64)
		return c
	}
	return condition{}
}

// stateOf returns the state that cert-manager reports of a Certificate.
func stateOf(certificate *unstructured.Unstructured) State {
	ready, issuing := conditionOf(certificate, "Ready"), conditionOf(certificate, "Issuing")
	// cert-manager retries a failed attempt with growing delay, an hour at first.
	failed := issuing.status == string(corev1.ConditionFalse)
	var reports []string
	switch {
	case ready.status == "":
		return State{Problem: "cert-manager has not processed its Certificate yet"}
	case isTrue(ready.status) && ready.generation != 0 && ready.generation < certificate.GetGeneration():
		return State{Problem: "cert-manager has not processed the last change of its Certificate yet"}
	case !isTrue(ready.status):
		reports = append(reports, ready.report())
	}
	if failed {
		reports = append(reports, issuing.report())
	}
	if len(reports) == 0 {
		return State{}
	}
	return State{Problem: "cert-manager reports " + strings.Join(slices.Compact(reports), "; "), Failed: failed}
}

// report returns the message of a condition.
func (c condition) report() string {
	return fmt.Sprintf("%q", shorten.Text(cmp.Or(c.message, c.reason), maxMessage))
}
