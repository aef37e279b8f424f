package plugin

import (
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned"
)

// kubeconfig selects the server, the user and the namespace of a command, with the files and flags of kubectl.
type kubeconfig struct {
	rules     *clientcmd.ClientConfigLoadingRules
	overrides *clientcmd.ConfigOverrides
}

func newKubeconfig() *kubeconfig {
	return &kubeconfig{rules: clientcmd.NewDefaultClientConfigLoadingRules(), overrides: &clientcmd.ConfigOverrides{}}
}

// addFlags adds the flags to a command and its subcommands.
func (k *kubeconfig) addFlags(command *cobra.Command) {
	flags := command.PersistentFlags()
	flags.StringVar(&k.rules.ExplicitPath, "kubeconfig", "", "Path of the kubeconfig file.")
	names := clientcmd.RecommendedConfigOverrideFlags("")
	names.ClusterOverrideFlags.APIServer.ShortName = "s"
	clientcmd.BindOverrideFlags(k.overrides, flags, names)
}

// session is a client with the namespace that the user selected.
type session struct {
	client    versioned.Interface
	config    *rest.Config
	namespace string
}

// connect returns a session. It sends no request.
func (k *kubeconfig) connect() (*session, error) {
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(k.rules, k.overrides)
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, err
	}
	config, err := loader.ClientConfig()
	if err != nil {
		return nil, err
	}
	// A command sends few requests; the server limits them by its own rules.
	config.QPS, config.UserAgent = -1, "kubectl-knative"
	client, err := versioned.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create client: %w", err)
	}
	return &session{client: client, config: config, namespace: namespace}, nil
}
