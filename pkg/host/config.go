package host

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// NewConfig returns the client configuration of the host cluster from the kubeconfig at a path, or from the ServiceAccount of
// the Pod if the path is empty. Watches resume shortly after an outage.
func NewConfig(kubeconfig string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("configure client of the host cluster: %w", err)
	}
	config.Wrap(Watches)
	return config, nil
}

// BuiltIn returns a copy of config for clients of Kubernetes' own kinds, which are smaller and faster to encode in Protocol
// Buffers than in JSON.
func BuiltIn(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	return config
}
