package apiserver

import (
	"context"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/component-base/metrics"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/etcd"
)

// Dependencies are the other parts of the process that an API server uses. All are optional.
type Dependencies struct {
	// Settings are the operator settings. Nil means the defaults.
	Settings Settings
	// ClusterDomain is the DNS domain of the cluster, whose names may not be mapped. Empty means cluster.local.
	ClusterDomain string
	// ServingCertificate is the certificate of the server. Nil means the certificate that the options specify.
	ServingCertificate dynamiccertificates.CertKeyContentProvider
	// StartEtcd starts the embedded etcd if the options specify no etcd servers. Nil starts a single member on the data directory.
	StartEtcd func(ctx context.Context) (*etcd.Embedded, error)
	// Collect registers the metrics of the embedded etcd. Nil does not.
	Collect func(all ...metrics.StableCollector)
	// Memory bounds the memory that requests hold. Nil means no bound.
	Memory Memory
	// Reads and Writes decide when calls of a namespace are served. Nil means at once.
	Reads, Writes Calls
	// DeadLetters serves the resource deadletters: this process has the dead letter store. Without it, the deletion of a namespace must not
	// wait for one.
	DeadLetters bool
	// Components use the API.
	Components Components
}

// Settings returns the current operator settings.
type Settings interface {
	API() servingv1.Settings
	Eventing() eventingv1.Settings
	Messaging() messagingv1.Settings
	// PodDefaults returns the operator's defaults of the Pods of Revisions; see podtemplate.Defaults.
	PodDefaults(labels map[string]string) (runtimeClass string, spread bool)
}

// Components run beside the API server.
type Components interface {
	// Start starts the components, once the API is served, and returns when all have started. The context ends
	// --shutdown-delay-duration after the shutdown of the server begins. An error stops the server.
	Start(ctx context.Context, server *Server) error
	// Ready returns the reason why not all components have started, or nil.
	Ready() error
}

// defaultSettings are the settings without an operator's choices.
type defaultSettings struct{}

// API implements Settings.
func (defaultSettings) API() servingv1.Settings { return servingv1.DefaultSettings() }

// Eventing implements Settings.
func (defaultSettings) Eventing() eventingv1.Settings { return eventingv1.DefaultSettings() }

// Messaging implements Settings.
func (defaultSettings) Messaging() messagingv1.Settings { return messagingv1.DefaultSettings() }

// PodDefaults implements Settings.
func (defaultSettings) PodDefaults(map[string]string) (runtimeClass string, spread bool) {
	return "", false
}
