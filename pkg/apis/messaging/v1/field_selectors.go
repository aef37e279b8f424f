package v1

import (
	"k8s.io/apimachinery/pkg/runtime"
)

// SubscriptionChannelNameField selects Subscriptions by the name of their channel.
const SubscriptionChannelNameField = "spec.channel.name"

func addFieldSelectors(scheme *runtime.Scheme) error {
	return scheme.AddFieldLabelConversionFunc(SchemeGroupVersion.WithKind("Subscription"), func(label, value string) (string, string, error) {
		if label == SubscriptionChannelNameField {
			return label, value, nil
		}
		return runtime.DefaultMetaV1FieldSelectorConversion(label, value)
	})
}
