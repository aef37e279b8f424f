package v1

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
)

// TriggerBrokerField selects Triggers by the name of their Broker.
const TriggerBrokerField = "spec.broker"

func addFieldSelectors(scheme *runtime.Scheme) error {
	return scheme.AddFieldLabelConversionFunc(SchemeGroupVersion.WithKind("Trigger"), func(label, value string) (string, string, error) {
		switch label {
		case "metadata.name", "metadata.namespace", TriggerBrokerField:
			return label, value, nil
		default:
			return "", "", fmt.Errorf("%q is not a known field selector: only \"metadata.name\", \"metadata.namespace\", %q", label, TriggerBrokerField)
		}
	})
}
