package v1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidateConditions returns the errors of the conditions in a status: each must have a unique type, a status and a
// known severity, and Ready must have the severity Error (eventing Error Signalling, serving 6-2).
func ValidateConditions(conditions Conditions, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[ConditionType]()
	for i := range conditions {
		c, at := &conditions[i], path.Index(i)
		switch {
		case c.Type == "":
			errs = append(errs, field.Required(at.Child("type"), "must name the aspect that the condition reports on"))
		case seen.Has(c.Type):
			errs = append(errs, field.Duplicate(at.Child("type"), c.Type))
		}
		seen.Insert(c.Type)
		if c.Status == "" {
			errs = append(errs, field.Required(at.Child("status"), "must be one of 'True', 'False' and 'Unknown'"))
		} else {
			errs = append(errs, validateEnum(&c.Status, at.Child("status"),
				corev1.ConditionTrue, corev1.ConditionFalse, corev1.ConditionUnknown)...)
		}
		if c.Type == ConditionReady {
			errs = append(errs, validateEnum(&c.Severity, at.Child("severity"), ConditionSeverityError)...)
		} else {
			errs = append(errs, validateEnum(&c.Severity, at.Child("severity"),
				ConditionSeverityError, ConditionSeverityWarning, ConditionSeverityInfo)...)
		}
	}
	return errs
}
