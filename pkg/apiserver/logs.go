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
	"github.com/knative-apiserver/knative-apiserver/pkg/revisionlog"
)

// longRunning tells the requests that no timeout cuts off: watches and logs.
var longRunning = genericfilters.BasicLongRunningRequestCheck(sets.NewString("watch"), sets.NewString("log"))

// logOptions returns what logs are served from: those of the host cluster's Pods where there is one, until source is
// set. Logs that are followed end as soon as the server is told to end.
func logOptions(server *genericapiserver.GenericAPIServer, host *rest.Config, source *revisionlog.Late) (revision.LogOptions, error) {
	if host != nil {
		config := rest.CopyConfig(host)
		// Each namespace has a limit of its own besides, so that its users do not wait for users of others.
		config.QPS, config.Burst = 200, 400
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return revision.LogOptions{}, fmt.Errorf("making a client of the host cluster's logs: %w", err)
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

// SetLogs has the logs of Revisions read from a source, where these do not run as Pods of a host cluster.
func (s *Server) SetLogs(source revisionlog.Source) { s.logs.Set(source) }
