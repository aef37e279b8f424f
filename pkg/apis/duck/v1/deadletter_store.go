package v1

import (
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	// DeadLetterStoreAnnotationKey on a Trigger, a Broker, a Subscription or a Channel selects whether undeliverable events go to the dead
	// letter store if no dead letter sink is configured. Its values are DeadLetterStoreEnabled, the default, and DeadLetterStoreDisabled:
	// such events are dropped. A Trigger or Subscription without the annotation has the value of its Broker or Channel.
	DeadLetterStoreAnnotationKey = "eventing.knative.dev/dead-letter-store"

	// DeadLetterStoreEnabled is a value of DeadLetterStoreAnnotationKey.
	DeadLetterStoreEnabled = "enabled"
	// DeadLetterStoreDisabled is a value of DeadLetterStoreAnnotationKey.
	DeadLetterStoreDisabled = "disabled"
)

// StoresDeadLetters reports whether undeliverable events go to the dead letter store: the first annotations that decide it count.
func StoresDeadLetters(all ...map[string]string) bool {
	for _, annotations := range all {
		if value, found := annotations[DeadLetterStoreAnnotationKey]; found {
			return value != DeadLetterStoreDisabled
		}
	}
	return true
}

// ValidateDeadLetterStore returns the errors of the annotation that StoresDeadLetters reads.
func ValidateDeadLetterStore(annotations map[string]string, path *field.Path) field.ErrorList {
	value, found := annotations[DeadLetterStoreAnnotationKey]
	if !found {
		return nil
	}
	return validateEnum(&value, path.Key(DeadLetterStoreAnnotationKey), DeadLetterStoreEnabled, DeadLetterStoreDisabled)
}
