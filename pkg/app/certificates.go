package app

import (
	"context"
	"fmt"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/certs"
)

// StartCertificates returns this server's certificates, once there are some. Until ctx ends they are kept current, and the
// authority in those APIServices that ask for it. replica is nil for a server that has no others.
func StartCertificates(ctx context.Context, host *rest.Config, namespace string, replica *Replica, o certs.Options) (*certs.Manager, error) {
	client, err := kubernetes.NewForConfig(host)
	if err != nil {
		return nil, fmt.Errorf("making a client of the host cluster: %w", err)
	}
	objects, err := dynamic.NewForConfig(host)
	if err != nil {
		return nil, fmt.Errorf("making a client of the host cluster: %w", err)
	}
	o.Client, o.Namespace = client, namespace
	o.Register, o.Logger = legacyregistry.MustRegister, klog.FromContext(ctx).WithName("certificates")
	if replica != nil {
		o.Leading = replica.Leading
	}
	manager, err := certs.New(o)
	if err != nil {
		return nil, err
	}
	bundles := manager.CABundles(objects)
	if err := manager.Start(ctx); err != nil {
		return nil, fmt.Errorf("getting certificates: %w", err)
	}
	go bundles.Run(ctx)
	if replica != nil {
		replica.secure(manager.PeerTLS())
	}
	return manager, nil
}
