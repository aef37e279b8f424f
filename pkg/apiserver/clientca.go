package apiserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

// clientCATimeout bounds the time for the host to publish the CA of its front proxy.
const clientCATimeout = 30 * time.Second

// awaitFrontProxyCA starts watching the client CAs that the host publishes, and returns once the front proxy's CA is known. The
// library alone starts watching them when serving starts: the first requests would be treated as anonymous and rejected.
func awaitFrontProxyCA(ctx context.Context, config *genericapiserver.Config) error {
	runner, ok := config.SecureServing.ClientCA.(dynamiccertificates.ControllerRunner)
	if !ok || config.Authentication.RequestHeaderConfig == nil {
		return nil
	}
	go runner.Run(ctx, 1)
	config.SecureServing.ClientCA = following{config.SecureServing.ClientCA}

	known := config.Authentication.RequestHeaderConfig.CAContentProvider
	err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, clientCATimeout, true, func(context.Context) (bool, error) {
		return len(known.CurrentCABundleContent()) > 0, nil
	})
	if err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("wait for CA of the host's front proxy (%s): %w", known.Name(), err)
	}
	return err
}

// following hides the Run method of a provider, because the provider runs already.
type following struct {
	dynamiccertificates.CAContentProvider
}
