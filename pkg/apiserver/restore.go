package apiserver

import (
	"context"
	"fmt"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	networkingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/networking/v1alpha1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	servingv1beta1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1beta1"
	"github.com/knative-apiserver/knative-apiserver/pkg/restore"
)

// completeRestore completes a restore of objects from a snapshot. It must return before the API is served.
func (o *Options) completeRestore(ctx context.Context, config *Config) error {
	storage := o.Recommended.Etcd.StorageConfig
	tls, err := transport.TLSInfo{
		CertFile: storage.Transport.CertFile, KeyFile: storage.Transport.KeyFile, TrustedCAFile: storage.Transport.TrustedCAFile,
	}.ClientConfig()
	if err != nil {
		return fmt.Errorf("read etcd certificates: %w", err)
	}
	if storage.Transport.CertFile == "" && storage.Transport.KeyFile == "" && storage.Transport.TrustedCAFile == "" {
		tls = nil
	}
	etcd, err := clientv3.New(clientv3.Config{Endpoints: storage.Transport.ServerList, TLS: tls, Logger: zap.NewNop()})
	if err != nil {
		return fmt.Errorf("connect to etcd: %w", err)
	}
	defer etcd.Close()
	// The API is not served until all host objects are patched. Their concurrency is limited already.
	unlimited := rest.CopyConfig(config.Generic.ClientConfig)
	unlimited.QPS = -1
	host, err := kubernetes.NewForConfig(unlimited)
	if err != nil {
		return fmt.Errorf("connect to the host cluster: %w", err)
	}
	options := restore.Options{
		Etcd: etcd, Prefix: storage.Prefix, Host: host, Namespace: o.SystemNamespace, Logger: klog.FromContext(ctx).WithName("restore"),
	}
	for _, resource := range storedResources() {
		stored, err := config.Generic.RESTOptionsGetter.GetRESTOptions(resource, nil)
		if err != nil {
			return fmt.Errorf("find storage of %s: %w", resource, err)
		}
		options.Resources = append(options.Resources, restore.Resource{
			GroupResource: resource,
			Prefix:        stored.StorageConfig.Prefix + "/" + stored.ResourcePrefix + "/",
			Transformer:   stored.StorageConfig.Transformer,
		})
	}
	return restore.Complete(ctx, options)
}

// storedResources returns the resources of this server's API groups.
func storedResources() []schema.GroupResource {
	return []schema.GroupResource{
		servingv1.Resource("services"), servingv1.Resource("configurations"), servingv1.Resource("revisions"), servingv1.Resource("routes"),
		servingv1beta1.Resource("domainmappings"),
		eventingv1alpha1.Resource("eventpolicies"), eventingv1alpha1.Resource("eventruns"),
		eventingv1.Resource("brokers"), eventingv1.Resource("triggers"),
		messagingv1.Resource("channels"), messagingv1.Resource("subscriptions"),
		networkingv1alpha1.Resource("clusterdomainclaims"),
	}
}
