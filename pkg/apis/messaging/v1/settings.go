package v1

import "k8s.io/apimachinery/pkg/util/validation/field"

// Settings are the operator's settings for new Channels (default-ch-webhook). They must not be modified.
//
// +k8s:deepcopy-gen=false
// +k8s:openapi-gen=false
type Settings struct {
	// Cluster is the template of Channels in every namespace that is not in Namespaces; nil means JetStreamChannel.
	Cluster *ChannelTemplateSpec
	// Namespaces overrides Cluster by namespace.
	Namespaces map[string]*ChannelTemplateSpec
}

// DefaultSettings returns the settings without a ConfigMap.
func DefaultSettings() Settings { return Settings{} }

// of returns the template of a namespace, or nil.
func (st Settings) of(namespace string) *ChannelTemplateSpec {
	if template, ok := st.Namespaces[namespace]; ok {
		return template
	}
	return st.Cluster
}

// Validate returns the errors of a template at path.
func (t *ChannelTemplateSpec) Validate(path *field.Path) field.ErrorList {
	return append(validateChannelTemplate(t, path), validateTemplateDelivery(t, path)...)
}
