package v1

import (
	"bytes"
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// SetDefaults_Channel chooses a durable channel where nothing is said, so that the choice is recorded from
// the start (eventing Channel Lifecycle).
func SetDefaults_Channel(c *Channel) {
	if c.Spec.ChannelTemplate == nil {
		c.Spec.ChannelTemplate = &ChannelTemplateSpec{TypeMeta: metav1.TypeMeta{
			APIVersion: SchemeGroupVersion.String(),
			Kind:       ChannelKindJetStream,
		}}
	}
	canonicalize(c.Spec.ChannelTemplate.Spec)
	c.Spec.Delivery.SetDefaults(c.Namespace)
}

// canonicalize brings raw JSON into one form (sorted keys, no space), so that the same parameters written
// differently are the same. What does not parse stays as it is, for validation to report.
func canonicalize(raw *runtime.RawExtension) {
	if raw == nil || len(raw.Raw) == 0 {
		return
	}
	// A decoder would stop at the end of the first value and drop what follows.
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
