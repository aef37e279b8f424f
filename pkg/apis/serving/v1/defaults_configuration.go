package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// SetDefaults_Configuration fills what a Configuration leaves out.
func SetDefaults_Configuration(c *Configuration) {
	c.Spec.Template.setDefaults()
}

// setDefaults fills what the template leaves out.
func (t *RevisionTemplateSpec) setDefaults() {
	t.Spec.setRequestDefaults(DefaultSettings())
	t.setFixedDefaults()
}

// setFixedDefaults fills what no setting decides, and gives times in the metadata the precision in which they
// are written. Nothing uses them, but a template must compare equal to itself when it is read back, or else
// writing the same manifest twice would make two Revisions.
func (t *RevisionTemplateSpec) setFixedDefaults() {
	t.Spec.setFixedDefaults()
	for _, at := range []*metav1.Time{&t.CreationTimestamp, t.DeletionTimestamp} {
		if !at.IsZero() {
			*at = at.Rfc3339Copy()
		}
	}
}
