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

// clientCATimeout bounds how long the host may take to tell by which authority its front proxy is known.
const clientCATimeout = 30 * time.Second

// awaitFrontProxyCA starts to follow the authorities of client certificates that the host publishes, and
// returns once that of the front proxy is known. The library alone would start to follow them with serving:
// users whose requests come first would be taken for anonymous and forbidden what they may do.
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
		return fmt.Errorf("waiting for the authority of the host's front proxy (%s): %w", known.Name(), err)
	}
	return err
}

// following hides that a provider has to be run, because it runs already.
type following struct {
	dynamiccertificates.CAContentProvider
}
