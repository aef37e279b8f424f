package inspect

import (
	"context"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned/scheme"
)

const deadLetters = "deadletters"

// DeadLetters returns a page of the dead letters of a namespace, the oldest first.
func DeadLetters(ctx context.Context, client versioned.Interface, namespace string, o metav1.ListOptions) (*eventingv1alpha1.DeadLetterList, error) {
	list := &eventingv1alpha1.DeadLetterList{}
	err := client.EventingV1alpha1().RESTClient().Get().Namespace(namespace).Resource(deadLetters).VersionedParams(&o, scheme.ParameterCodec).Do(ctx).Into(list)
	return list, err
}

// DeadLetter returns a dead letter by its name.
func DeadLetter(ctx context.Context, client versioned.Interface, namespace, name string) (*eventingv1alpha1.DeadLetter, error) {
	letter := &eventingv1alpha1.DeadLetter{}
	err := client.EventingV1alpha1().RESTClient().Get().Namespace(namespace).Resource(deadLetters).Name(name).Do(ctx).Into(letter)
	return letter, err
}

// DeleteDeadLetter deletes a dead letter.
func DeleteDeadLetter(ctx context.Context, client versioned.Interface, namespace, name string) error {
	return client.EventingV1alpha1().RESTClient().Delete().Namespace(namespace).Resource(deadLetters).Name(name).Do(ctx).Error()
}

// Consumer returns the Trigger or Subscription of a dead letter, such as "Trigger billing".
func Consumer(d *eventingv1alpha1.DeadLetter) string { return d.Consumer.Kind + " " + d.Consumer.Name }

// Failure describes the last attempt to deliver a dead letter.
func Failure(d *eventingv1alpha1.DeadLetter) string {
	var parts []string
	if d.Attempts > 0 {
		parts = append(parts, fmt.Sprintf("%d attempts", d.Attempts))
	}
	if d.LastCode != 0 {
		parts = append(parts, fmt.Sprintf("last code %d", d.LastCode))
	}
	return Join(": ", strings.Join(parts, ", "), d.LastError)
}
