package hostservice

import (
	"encoding/json"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// port is the port of the Services of the gateway and of the broker.
const port = 80

// desired returns the Service of a name, for its owner.
func (s *Services) desired(owner metav1.Object, name string) *corev1.Service {
	labels := map[string]string{}
	maps.Copy(labels, owner.GetLabels())
	labels[s.LabelKey] = owner.GetName()
	annotations := maps.Clone(owner.GetAnnotations())
	// kubectl's last applied configuration describes the object, not the Service.
	delete(annotations, corev1.LastAppliedConfigAnnotation)
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       owner.GetNamespace(),
			Name:            name,
			Labels:          labels,
			Annotations:     annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, s.Kind)},
		},
		Spec: corev1.ServiceSpec{
			Type:            corev1.ServiceTypeExternalName,
			ExternalName:    s.Target,
			SessionAffinity: corev1.ServiceAffinityNone,
			Ports:           []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: port, TargetPort: intstr.FromInt32(port)}},
		},
	}
}

// adapted returns a copy of a Service in the desired state, or nil if it is in that state. Labels and annotations added by other
// field managers stay; labels and annotations written earlier by this server and no longer desired are removed.
func adapted(existing, desired *corev1.Service) *corev1.Service {
	updated := existing.DeepCopy()
	labels, annotations := written(existing.ManagedFields)
	updated.Labels = merge(updated.Labels, desired.Labels, labels)
	updated.Annotations = merge(updated.Annotations, desired.Annotations, annotations)
	updated.Spec = *desired.Spec.DeepCopy()
	if controller := metav1.GetControllerOfNoCopy(updated); controller != nil {
		*controller = desired.OwnerReferences[0]
	}
	if equality.Semantic.DeepEqual(existing, updated) {
		return nil
	}
	return updated
}

// merge replaces the keys that were written before by the desired ones.
func merge(there, desired map[string]string, before map[string]struct{}) map[string]string {
	merged := map[string]string{}
	for key, value := range there {
		if _, ours := before["f:"+key]; !ours {
			merged[key] = value
		}
	}
	maps.Copy(merged, desired)
	return merged
}

// written returns the keys of labels and annotations, after "f:", that this server was the last to write.
func written(managed []metav1.ManagedFieldsEntry) (labels, annotations map[string]struct{}) {
	for _, entry := range managed {
		if entry.Manager != fieldManager || entry.Operation != metav1.ManagedFieldsOperationUpdate || entry.Subresource != "" || entry.FieldsV1 == nil {
			continue
		}
		var fields struct {
			Metadata struct {
				Labels      map[string]struct{} `json:"f:labels"`
				Annotations map[string]struct{} `json:"f:annotations"`
			} `json:"f:metadata"`
		}
		// Without valid managed fields, the keys that this server wrote are unknown, so none are removed.
		if err := json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields); err == nil {
			return fields.Metadata.Labels, fields.Metadata.Annotations
		}
	}
	return nil, nil
}
