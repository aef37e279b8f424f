package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// SetDefaults_Configuration sets the defaults of a Configuration.
func SetDefaults_Configuration(c *Configuration) {
	c.Spec.Template.setDefaults()
}

// setDefaults sets the defaults of the template.
func (t *RevisionTemplateSpec) setDefaults() {
	t.Spec.setRequestDefaults(DefaultSettings())
	t.setFixedDefaults()
}

// setFixedDefaults sets the defaults that do not depend on settings, and truncates times in the metadata to the precision of their
// encoding. The times have no effect, but a template must equal itself after it is stored and read; otherwise applying the same
// manifest twice would create two Revisions.
func (t *RevisionTemplateSpec) setFixedDefaults() {
	t.Spec.setFixedDefaults()
	for _, at := range []*metav1.Time{&t.CreationTimestamp, t.DeletionTimestamp} {
		if !at.IsZero() {
			*at = at.Rfc3339Copy()
		}
	}
}
