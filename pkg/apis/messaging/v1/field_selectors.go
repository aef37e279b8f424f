package v1

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
)

// SubscriptionChannelNameField selects Subscriptions by the name of their channel.
const SubscriptionChannelNameField = "spec.channel.name"

func addFieldSelectors(scheme *runtime.Scheme) error {
	return scheme.AddFieldLabelConversionFunc(SchemeGroupVersion.WithKind("Subscription"), func(label, value string) (string, string, error) {
		switch label {
		case "metadata.name", "metadata.namespace", SubscriptionChannelNameField:
			return label, value, nil
		default:
			return "", "", fmt.Errorf("%q is not a known field selector: only \"metadata.name\", \"metadata.namespace\", %q", label, SubscriptionChannelNameField)
		}
	})
}
