package podtemplate

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// templatePath is the path of a Pod's fields in Services, Configurations and Revisions.
const templatePath = "spec.template"

// invalid converts the host's rejection of a Pod to a rejection of the object: status 422, one cause for each of the
// host's, with field paths below spec.template. added returns the number of environment variables that come before the
// user's in a container of the Pod.
func invalid(kind schema.GroupKind, name string, refusal error, added func(init bool, container int) int) error {
	causes := hostCauses(refusal)
	for i := range causes {
		causes[i].Field = ownField(causes[i].Field, added)
	}
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

// environment matches the path of an environment variable.
var environment = regexp.MustCompile(`^(.*\.(initC|c)ontainers\[(\d+)\]\.env\[)(\d+)(\].*)$`)

// ownField returns the path in the template of a field of the Pod: the user's environment variables have other indexes there.
func ownField(path string, added func(init bool, container int) int) string {
	match := environment.FindStringSubmatch(path)
	if match == nil {
		return path
	}
	container, err := strconv.Atoi(match[3])
	if err != nil {
		return path
	}
	variable, err := strconv.Atoi(match[4])
	if err != nil {
		return path
	}
	return match[1] + strconv.Itoa(max(variable-added(match[2] == "initC", container), 0)) + match[5]
}

// exceedsQuota reports whether a rejection comes from ResourceQuota, and so depends on the namespace's other Pods. The quota
// plugin sets no specific reason or cause.
func exceedsQuota(message string) bool {
	return strings.Contains(message, "is forbidden: exceeded quota: ")
}
