package v1

import (
	"bytes"
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// SubscribableAnnotationKey on a Channel is the version of the duck type of its spec.subscribers. Tools and controllers of
// Knative's releases require it.
const SubscribableAnnotationKey = GroupName + "/subscribable"

// SetDefaults_Channel completes the delivery options of a Channel, with its template's if it has none. SetCreateDefaults sets the
// template once; a stored Channel without one was stored before templates were recorded.
func SetDefaults_Channel(c *Channel) {
	if c.UID != "" {
		c.setTemplate(nil)
	}
	if c.Annotations[SubscribableAnnotationKey] == "" {
		if c.Annotations == nil {
			c.Annotations = map[string]string{}
		}
		c.Annotations[SubscribableAnnotationKey] = "v1"
	}
	template := c.Spec.ChannelTemplate
	if template != nil {
		canonicalize(template.Spec)
	}
	if c.Spec.Delivery.IsEmpty() {
		if delivery, errs := template.delivery(field.NewPath("spec")); len(errs) == 0 && !delivery.IsEmpty() {
			c.Spec.Delivery = delivery
		}
	}
	c.Spec.Delivery.SetDefaults(c.Namespace)
}

// SetCreateDefaults sets the template of a new Channel without one from settings, so that it is recorded from the start
// (eventing Channel Lifecycle).
func (c *Channel) SetCreateDefaults(st Settings) {
	c.setTemplate(st.of(c.Namespace))
	SetDefaults_Channel(c)
}

// SetUpdateDefaults keeps the template of old if an update has none, regardless of the current settings (eventing Channel
// Lifecycle).
func (c *Channel) SetUpdateDefaults(old *Channel) {
	c.setTemplate(old.Spec.ChannelTemplate)
}

// setTemplate sets the template of a Channel without one; nil means a durable channel.
func (c *Channel) setTemplate(template *ChannelTemplateSpec) {
	if c.Spec.ChannelTemplate != nil {
		return
	}
	if template == nil {
		template = &ChannelTemplateSpec{TypeMeta: metav1.TypeMeta{APIVersion: SchemeGroupVersion.String(), Kind: ChannelKindJetStream}}
	}
	c.Spec.ChannelTemplate = template.DeepCopy()
}

// Own reports whether this server implements the kind of the template.
func (t *ChannelTemplateSpec) Own() bool {
	return t != nil && schema.FromAPIVersionAndKind(t.APIVersion, t.Kind).Group == GroupName &&
		(t.Kind == ChannelKindJetStream || t.Kind == ChannelKindInMemory)
}

// delivery returns the delivery options in the parameters of a template, and their errors. Foreign implementations interpret the
// parameters of their templates.
func (t *ChannelTemplateSpec) delivery(path *field.Path) (*duckv1.DeliverySpec, field.ErrorList) {
	if !t.Own() || t.Spec == nil || len(t.Spec.Raw) == 0 {
		return nil, nil
	}
	var parameters struct {
		Delivery *json.RawMessage `json:"delivery"`
	}
	path = path.Child("spec", "delivery")
	if err := json.Unmarshal(t.Spec.Raw, &parameters); err != nil || parameters.Delivery == nil {
		// Parameters that are not an object are reported elsewhere.
		return nil, nil
	}
	var delivery *duckv1.DeliverySpec
	decoder := json.NewDecoder(bytes.NewReader(*parameters.Delivery))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&delivery); err != nil {
		return nil, field.ErrorList{field.Invalid(path, string(*parameters.Delivery), "must be delivery options: "+err.Error())}
	}
	return delivery, delivery.Validate(path)
}

// canonicalize normalizes raw JSON (sorted keys, no whitespace), so that equivalent parameters are equal. Invalid JSON does not
// change; validation reports it.
func canonicalize(raw *runtime.RawExtension) {
	if raw == nil || len(raw.Raw) == 0 {
		return
	}
	// A decoder would stop at the end of the first value and drop the rest.
	if !json.Valid(raw.Raw) {
		return
	}
	decoder := json.NewDecoder(bytes.NewReader(raw.Raw))
	decoder.UseNumber()
	var value any
	if decoder.Decode(&value) != nil {
		return
	}
	if canonical, err := json.Marshal(value); err == nil {
		raw.Raw = canonical
	}
}
