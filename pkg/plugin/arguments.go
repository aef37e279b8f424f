package plugin

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// kind is a kind that arguments name.
type kind struct {
	// singular is the lower-case name, such as service. names are all names that users may write, with the short names of the API.
	singular string
	names    []string
	// list returns the objects of a namespace, of all namespaces if it is empty.
	list func(ctx context.Context, s *session, namespace string) (runtime.Object, error)
}

// The kinds of arguments.
var (
	services = &kind{"service", []string{"service", "services", "ksvc", "services.serving.knative.dev"}, func(ctx context.Context, s *session, namespace string) (runtime.Object, error) {
		return s.client.ServingV1().Services(namespace).List(ctx, metav1.ListOptions{})
	}}
	revisions = &kind{"revision", []string{"revision", "revisions", "rev", "revisions.serving.knative.dev"}, func(ctx context.Context, s *session, namespace string) (runtime.Object, error) {
		return s.client.ServingV1().Revisions(namespace).List(ctx, metav1.ListOptions{})
	}}
	brokers = &kind{"broker", []string{"broker", "brokers", "brokers.eventing.knative.dev"}, func(ctx context.Context, s *session, namespace string) (runtime.Object, error) {
		return s.client.EventingV1().Brokers(namespace).List(ctx, metav1.ListOptions{})
	}}
	triggers = &kind{"trigger", []string{"trigger", "triggers", "triggers.eventing.knative.dev"}, func(ctx context.Context, s *session, namespace string) (runtime.Object, error) {
		return s.client.EventingV1().Triggers(namespace).List(ctx, metav1.ListOptions{})
	}}
	channels = &kind{"channel", []string{"channel", "channels", "ch", "channels.messaging.knative.dev"}, func(ctx context.Context, s *session, namespace string) (runtime.Object, error) {
		return s.client.MessagingV1().Channels(namespace).List(ctx, metav1.ListOptions{})
	}}
	subscriptions = &kind{"subscription", []string{"subscription", "subscriptions", "sub", "subscriptions.messaging.knative.dev"}, func(ctx context.Context, s *session, namespace string) (runtime.Object, error) {
		return s.client.MessagingV1().Subscriptions(namespace).List(ctx, metav1.ListOptions{})
	}}
)

// kinds are the kinds that a command accepts, the default first.
type kinds []*kind

func (all kinds) named(name string) *kind {
	for _, k := range all {
		if slices.Contains(k.names, strings.ToLower(name)) {
			return k
		}
	}
	return nil
}

// String returns the names as in "service, revision".
func (all kinds) String() string {
	var names []string
	for _, k := range all {
		names = append(names, k.singular)
	}
	return strings.Join(names, ", ")
}

// object parses the arguments TYPE NAME, TYPE/NAME, or NAME for the first kind.
func (all kinds) object(args []string) (k *kind, name string, err error) {
	switch {
	case len(args) == 1 && strings.Contains(args[0], "/"):
		args = strings.SplitN(args[0], "/", 2)
	case len(args) == 1 && all.named(args[0]) == nil:
		args = []string{all[0].singular, args[0]}
	}
	if len(args) != 2 || args[1] == "" {
		return nil, "", fmt.Errorf("one object must be named, as TYPE NAME or TYPE/NAME; valid types are %s", all)
	}
	if k = all.named(args[0]); k == nil {
		return nil, "", fmt.Errorf("unknown type '%.100s'; valid types are %s", args[0], all)
	}
	if strings.Contains(args[1], "/") {
		return nil, "", fmt.Errorf("'%.100s' is not the name of a %s", args[1], k.singular)
	}
	return k, args[1], nil
}

// complete completes the arguments of object.
func (all kinds) complete(e *environment) cobra.CompletionFunc {
	return func(command *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		typed, prefix := "", ""
		switch {
		case len(args) == 1:
			typed = args[0]
		case len(args) > 1:
			return nil, cobra.ShellCompDirectiveNoFileComp
		case strings.Contains(begun, "/"):
			typed, _, _ = strings.Cut(begun, "/")
			prefix = typed + "/"
		}
		var found []cobra.Completion
		if typed == "" {
			for _, k := range all {
				found = append(found, k.singular)
			}
			typed = all[0].singular
		}
		for _, name := range all.named(typed).objects(command.Context(), e) {
			found = append(found, prefix+name)
		}
		return slices.DeleteFunc(found, func(s string) bool { return !strings.HasPrefix(s, begun) }), cobra.ShellCompDirectiveNoFileComp
	}
}

// objects returns the names of the objects in the namespace of the command, nothing if they cannot be read.
func (k *kind) objects(ctx context.Context, e *environment) (names []string) {
	if k == nil {
		return nil
	}
	s, err := e.connect()
	if err != nil {
		return nil
	}
	list, err := k.list(ctx, s, s.namespace)
	if err != nil {
		return nil
	}
	objects, err := namesOf(list)
	if err != nil {
		return nil
	}
	return objects
}
