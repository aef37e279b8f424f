package podtemplate

import (
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// templatePath is the path of a Pod's fields in our objects.
const templatePath = "spec.template"

// invalid converts the host's rejection of a Pod to a rejection of the object: status 422, one cause for each of the
// host's, with field paths below spec.template.
func invalid(kind schema.GroupKind, name string, refusal error) error {
	causes := hostCauses(refusal)
	messages := make([]string, 0, len(causes))
	for _, cause := range causes {
		messages = append(messages, cause.Field+": "+cause.Message)
	}
	err := apierrors.NewInvalid(kind, name, nil)
	err.ErrStatus.Details.Causes = causes
	err.ErrStatus.Message = fmt.Sprintf("%s %q is invalid: the host cluster rejects the template as a Pod: %s", kind, name, strings.Join(messages, ", "))
	return err
}

func hostCauses(refusal error) []metav1.StatusCause {
	var status apierrors.APIStatus
	if !errors.As(refusal, &status) {
		return []metav1.StatusCause{{Type: metav1.CauseTypeFieldValueInvalid, Message: refusal.Error(), Field: templatePath}}
	}
	var causes []metav1.StatusCause
	if details := status.Status().Details; details != nil {
		for _, cause := range details.Causes {
			cause.Field = strings.TrimSuffix(templatePath+"."+cause.Field, ".")
			causes = append(causes, cause)
		}
	}
	if len(causes) == 0 {
		// Admission (Pod Security, policies, webhooks) reports errors for the Pod as a whole.
		causes = append(causes, metav1.StatusCause{
			Type:    metav1.CauseTypeForbidden,
			Message: status.Status().Message,
			Field:   templatePath,
		})
	}
	return causes
}

// exceedsQuota reports whether a rejection comes from ResourceQuota, and so depends on the namespace's other Pods. The quota
// plugin sets no specific reason or cause.
func exceedsQuota(message string) bool {
	return strings.Contains(message, "is forbidden: exceeded quota: ")
}
