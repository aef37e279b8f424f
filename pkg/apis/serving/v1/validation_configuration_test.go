package v1

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestValidateConfiguration(t *testing.T) {
	c := newConfiguration()
	SetDefaults_Configuration(c)
	checkFaults(t, ValidateConfiguration(c, DefaultSettings()))
	checkFaults(t, ValidateConfigurationUpdate(c, c.DeepCopy(), DefaultSettings()))

	c.Spec.Template.Name = "other-v1"
	c.Spec.Template.Spec.Containers = nil
	want := []fault{
		invalid("spec.template.metadata.name", "must start with 'hello-'"),
		required("spec.template.spec.containers", "at least one"),
	}
	checkFaults(t, ValidateConfiguration(c, DefaultSettings()), want...)
	checkFaults(t, ValidateConfigurationUpdate(c, c.DeepCopy(), DefaultSettings()), want...)

	c.DeletionTimestamp = &metav1.Time{}
	checkFaults(t, ValidateConfigurationUpdate(c, c.DeepCopy(), DefaultSettings()))
}
