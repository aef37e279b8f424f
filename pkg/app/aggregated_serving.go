package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/hostservice"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/route"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/gateway"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
	kubeworkload "github.com/knative-apiserver/knative-apiserver/pkg/workload/kubernetes"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/kubernetes/images"
)

const (
	// internalGateway is the Service in the system namespace that leads the cluster's Pods to the gateway.
	internalGateway = "gateway-internal"
	// drainPort is that of internalGateway for kubelets, drainHeaderTimeout bounds the header of their requests.
	drainPort          = 8083
	drainHeaderTimeout = 10 * time.Second
	// longestRequest is how long requests under way may go on when the server ends: as long as a Revision may allow.
	longestRequest = 10 * time.Minute
	// activationTimeout bounds what a waiting request has done to a revision without instances.
	activationTimeout = 10 * time.Second
)

// serving makes the part that runs Services. services has the core Services of the host cluster. Clients go to other replicas
// from when stopping ends.
func (a *Aggregated) serving(ctx, stopping context.Context, clients *clients, services cache.SharedIndexInformer) (part, error) {
	var gateways *gateway.Gateway
	options := kubeworkload.Options{
		Client:   a.writer,
		Images:   images.New(images.Options{Client: a.host, Settings: a.settings.Get, Guard: a.guard, Clock: clock.RealClock{}, Logger: klog.FromContext(ctx)}),
		Settings: a.settings.Get,
		Drain: func(ctx context.Context, revision workload.Key, instance string) error {
			return gateways.AwaitDrainedEverywhere(ctx, revision, instance)
		},
		DrainAddress: a.drainAddress(ctx),
		LogURL:       logURL,
		Logger:       klog.FromContext(ctx).WithName("pods"),
	}
	if a.options.Replica != nil {
		options.Leading = a.options.Replica.Leading
	}
	pods, err := kubeworkload.New(options)
	if err != nil {
		return part{}, err
	}
	placeholders, err := hostservice.New(hostservice.Options{
		Client: a.writer.CoreV1(), Informer: services,
		Kind: servingv1.SchemeGroupVersion.WithKind("Route"), LabelKey: route.RouteLabelKey,
		Target: a.serviceName(internalGateway),
	})
	if err != nil {
		return part{}, err
	}
	log := accessLog(a.options.Serving.AccessLog)
	serving, err := newServing(ctx, servingOptions{
		clients:      clients,
		runtime:      pods,
		settings:     a.settings,
		accessLog:    log,
		budget:       a.budget,
		urls:         route.URLs{ClusterDomain: a.options.ClusterDomain},
		placeholders: placeholders,
		replica:      a.options.Replica,
		activate:     func(key routing.Key) { a.background(ctx, func(ctx context.Context) { activate(ctx, pods, key) }) },
		listeners:    2,
		stopTimeout:  longestRequest,
	})
	if err != nil {
		return part{}, err
	}
	gateways = serving.gateway
	context.AfterFunc(stopping, gateways.Retire)
	prepare := func(ctx context.Context, run func(func(context.Context))) error {
		if err := pods.Start(ctx); err != nil {
			return err
		}
		return serving.prepare(ctx, run)
	}
	return part{prepare, func(ctx context.Context) error {
		if log != nil {
			// Nothing is written any more when both have ended.
			defer closeLog(ctx, log)
		}
		return a.serveGateway(ctx, gateways, pods.DrainHandler())
	}}, nil
}

// drainAddress returns where kubelets ask whether Pods have drained: the Service of the gateway, by its address, since a
// node knows no names of the cluster's. It is looked for once.
func (a *Aggregated) drainAddress(ctx context.Context) func() (string, int32) {
	address := sync.OnceValue(func() string {
		service, err := a.host.CoreV1().Services(a.options.SystemNamespace).Get(ctx, internalGateway, metav1.GetOptions{})
		if err != nil {
			klog.FromContext(ctx).Info("Pods sleep before they end, instead of asking whether they have drained", "reason", err.Error())
			return ""
		}
		return service.Spec.ClusterIP
	})
	return func() (string, int32) { return address(), drainPort }
}

// serveGateway takes requests until ctx ends and those under way are answered, and the questions of kubelets.
func (a *Aggregated) serveGateway(ctx context.Context, g *gateway.Gateway, drain http.Handler) error {
	o := a.options.Serving
	if o.Public == nil {
		<-ctx.Done()
		return nil
	}
	hooks := &http.Server{Handler: drain, ReadHeaderTimeout: drainHeaderTimeout, IdleTimeout: drainHeaderTimeout}
	var all errgroup.Group
	all.Go(func() error { return g.ServePublic(ctx, o.Public) })
	all.Go(func() error { return g.Serve(ctx, o.Internal) })
	all.Go(func() error {
		if err := hooks.Serve(flow.LimitListener(o.Drain, flow.MaxConnections())); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("answering kubelets: %w", err)
		}
		return nil
	})
	// Kubelets whose question is cut off take that for an answer: another replica must be the one to ask by then.
	defer context.AfterFunc(ctx, func() { hooks.Close() })()
	return all.Wait()
}

// activate has an instance of a revision run that has none.
func activate(ctx context.Context, pods *kubeworkload.Runtime, key routing.Key) {
	ctx, cancel := context.WithTimeout(ctx, activationTimeout)
	defer cancel()
	if err := pods.Activate(ctx, key); err != nil && !errors.Is(err, context.Canceled) {
		klog.FromContext(ctx).Error(err, "Scaling from zero for a request that waits failed", "revision", key)
	}
}

// serviceName returns the DNS name of a Service of the system namespace.
func (a *Aggregated) serviceName(service string) string {
	return service + "." + a.options.SystemNamespace + ".svc." + a.options.ClusterDomain
}

// logURL is where the logs of a revision's Pods are, below the address of the cluster's API.
func logURL(revision workload.Key) string {
	return servingv1.RevisionLogPath(revision.Namespace, revision.Name)
}

// accessLog returns the access log of a path, or nil without one.
func accessLog(path string) io.WriteCloser {
	if path == "" {
		return nil
	}
	return openAccessLog(path)
}
