package v1

import (
	"k8s.io/apimachinery/pkg/runtime"
)

// TriggerBrokerField selects Triggers by the name of their Broker.
const TriggerBrokerField = "spec.broker"

func addFieldSelectors(scheme *runtime.Scheme) error {
	return scheme.AddFieldLabelConversionFunc(SchemeGroupVersion.WithKind("Trigger"), func(label, value string) (string, string, error) {
		if label == TriggerBrokerField {
			return label, value, nil
		}
		return runtime.DefaultMetaV1FieldSelectorConversion(label, value)
	})
}
