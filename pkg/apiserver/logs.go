package apiserver

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/util/sets"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/knative-apiserver/knative-apiserver/pkg/registry/serving/revision"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/revisionlog"
)

// logSubresource is the subresource of a Revision's log.
const logSubresource = "log"

// proxySubresource is the subresource of requests to a Service.
const proxySubresource = "proxy"

// tailSubresource is the subresource of the events of a Broker.
const tailSubresource = "tail"

// longRunning matches requests without a timeout: watches, logs, tails and requests to Services.
var longRunning = genericfilters.BasicLongRunningRequestCheck(sets.NewString("watch"), sets.NewString(logSubresource, proxySubresource, tailSubresource))

// logOptions returns the options of the subresource log. The source is the logs of the host cluster's Pods, if any, until
// SetLogs replaces it. Followed logs end as soon as the server begins to shut down.
func logOptions(server *genericapiserver.GenericAPIServer, host *rest.Config, source *revisionlog.Late) (revision.LogOptions, error) {
	if host != nil {
		config := rest.CopyConfig(host)
		// A separate limit per namespace prevents users from waiting for other namespaces.
		config.QPS, config.Burst = 200, 400
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return revision.LogOptions{}, fmt.Errorf("create client of the host cluster for logs: %w", err)
		}
		source.Set(&revisionlog.Pods{Client: client})
	}
	stopping, stop := context.WithCancel(context.Background())
	err := server.AddPreShutdownHook("end-logs", func() error { stop(); return nil })
	if err != nil {
		stop()
		return revision.LogOptions{}, err
	}
	return revision.LogOptions{Source: source, Stopping: stopping.Done()}, nil
}

// SetLogs sets the source of Revision logs, for Revisions that do not run as Pods of a host cluster.
func (s *Server) SetLogs(source revisionlog.Source) { s.logs.Set(source) }
