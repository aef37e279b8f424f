package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/tracing"

	"github.com/knative-apiserver/knative-apiserver/pkg/admission/podtemplate"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/etcd"
	"github.com/knative-apiserver/knative-apiserver/pkg/reconnect"
)

// etcdPrefix is where our objects live in etcd, unless --etcd-prefix says otherwise.
const etcdPrefix = "/registry/knative"

// watchGracePeriod bounds how long a server that ends waits for watches to close, which it tells to.
const watchGracePeriod = 5 * time.Second

// Options are the flags of a server behind kube-aggregator.
type Options struct {
	Recommended *genericoptions.RecommendedOptions
	Run         *genericoptions.ServerRunOptions
	// DataDir holds the embedded etcd's data, where no etcd servers are given.
	DataDir string
	// ControllersUsers also count as the controllers; see identity.Controllers.
	ControllersUsers []string
	// SystemNamespace is the namespace of the server in the host cluster. Restores are completed if it is set.
	SystemNamespace string
	// NoAPI leaves out the API groups, and with them etcd and admission: what is served are health checks and metrics.
	NoAPI bool
	// StartEtcd starts the embedded etcd, where no etcd servers are given. Nil means one member on DataDir.
	StartEtcd func(ctx context.Context) (*etcd.Embedded, error)
	// Settings, EventingSettings and MessagingSettings return the operator's settings in force. Nil means the defaults.
	Settings          func() servingv1.Settings
	EventingSettings  func() eventingv1.Settings
	MessagingSettings func() messagingv1.Settings
	// PodDefaults returns the operator's defaults for the Pods of Revisions. Nil means that there are none.
	PodDefaults podtemplate.Defaults
	// Start starts what runs beside the API, once that is served. The context ends when the server has told for
	// --shutdown-delay-duration that it will end. An error stops the server. Nil means that nothing does.
	Start func(ctx context.Context, server *Server) error

	scheme *runtime.Scheme
	codecs serializer.CodecFactory
	// embedded is the embedded etcd, if there is one.
	embedded *etcd.Embedded
}

// NewOptions returns the defaults.
func NewOptions() *Options {
	scheme := newScheme()
	codecs := serializer.NewCodecFactory(scheme)
	recommended := genericoptions.NewRecommendedOptions(etcdPrefix, storageCodec(codecs))
	recommended.Etcd.StorageConfig.EncodeVersioner = schema.GroupVersions(storedVersions())
	addAdmissionPlugins(recommended.Admission)
	run := genericoptions.NewServerRunOptions()
	// Somebody always watches: the host's garbage collector. By the library's default of 0 their connections
	// would hold up the end of the process for a minute, in which nothing is served.
	run.ShutdownWatchTerminationGracePeriod = watchGracePeriod
	return &Options{
		Recommended: recommended,
		Run:         run,
		DataDir:     "/var/lib/knative-apiserver",
		scheme:      scheme,
		codecs:      codecs,
	}
}

// AddFlags registers the flags.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	o.Recommended.AddFlags(flags)
	o.Run.AddUniversalFlags(flags)
	flags.StringVar(&o.DataDir, "data-dir", o.DataDir,
		"Directory of the embedded etcd's data, used when --etcd-servers is not given, and of the embedded event log's.")
	addControllersUserFlag(flags, &o.ControllersUsers)
}

// addControllersUserFlag registers the flag of users that count as the controllers.
func addControllersUserFlag(flags *pflag.FlagSet, users *[]string) {
	flags.StringSliceVar(users, "controllers-user", *users,
		"Names of users that may create Revisions, set the subscribers of Channels and write status, like the controllers in this process. "+
			"Users that may impersonate one of them have these rights too. Empty allows no other user.")
}

// Validate returns all that is wrong with the flags.
func (o *Options) Validate() error {
	var errs []error
	if o.NoAPI {
		o.Recommended.Etcd = nil
	} else if len(o.Recommended.Etcd.StorageConfig.Transport.ServerList) == 0 {
		if o.DataDir == "" {
			errs = append(errs, errors.New("one of --etcd-servers and --data-dir must be given"))
		}
		// The embedded etcd's address is known once it runs.
		o.Recommended.Etcd.StorageConfig.Transport.ServerList = []string{embeddedEtcd}
		defer func() { o.Recommended.Etcd.StorageConfig.Transport.ServerList = nil }()
	}
	errs = append(errs, o.Recommended.Validate()...)
	errs = append(errs, o.Run.Validate()...)
	return utilerrors.NewAggregate(errs)
}

// componentsCheck is the check of /readyz that what runs beside the API has started. How it fares from then on decides
// nothing about the API.
const componentsCheck = "components"

// embeddedEtcd stands for the address of the embedded etcd while flags are checked.
const embeddedEtcd = "embedded"

// RunServer serves until ctx ends.
func (o *Options) RunServer(ctx context.Context) error {
	config := newConfig(o.scheme, o.codecs)
	config.Controllers.UserNames = o.ControllersUsers
	if o.Settings != nil {
		config.Settings = o.Settings
	}
	if o.EventingSettings != nil {
		config.EventingSettings = o.EventingSettings
	}
	if o.MessagingSettings != nil {
		config.MessagingSettings = o.MessagingSettings
	}
	config.NoAPI = o.NoAPI
	switch {
	case o.NoAPI:
		o.Recommended.Etcd, o.Recommended.Admission = nil, nil
		o.Recommended.Features.EnablePriorityAndFairness = false
	case len(o.Recommended.Etcd.StorageConfig.Transport.ServerList) == 0:
		stop, err := o.startEmbeddedEtcd(ctx)
		if err != nil {
			return err
		}
		defer stop()
	}
	if err := o.applyTo(config); err != nil {
		return err
	}
	if !o.NoAPI {
		if err := o.preflight(ctx, config); err != nil {
			return err
		}
		if o.SystemNamespace != "" {
			if err := o.completeRestore(ctx, config); err != nil {
				return err
			}
		}
	}
	if err := awaitFrontProxyCA(ctx, &config.Generic.Config); err != nil {
		return err
	}
	var started atomic.Bool
	config.Generic.AddReadyzChecks(healthz.NamedCheck(componentsCheck, func(*http.Request) error {
		if !started.Load() {
			return errors.New("not started yet")
		}
		return nil
	}))
	server, err := config.New()
	if err != nil {
		return err
	}
	return server.Run(ctx, func(ctx context.Context) error {
		if o.Start != nil {
			if err := o.Start(ctx, server); err != nil {
				return err
			}
		}
		started.Store(true)
		return nil
	})
}

// HostConfig returns how the host cluster is reached as this server: by --kubeconfig, or as its ServiceAccount. Watches go on
// soon after it was away.
func (o *Options) HostConfig() (*rest.Config, error) {
	path := o.Recommended.CoreAPI.CoreAPIKubeconfigPath
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("finding the host cluster: %w", err)
	}
	config.Wrap(reconnect.Watches)
	return config, nil
}

// preflight looks at the host cluster before anything is served.
func (o *Options) preflight(ctx context.Context, config *Config) error {
	hostClient, err := kubernetes.NewForConfig(config.Generic.ClientConfig)
	if err != nil {
		return err
	}
	if o.Recommended.Authentication.RequestHeader.ClientCAFile == "" {
		if err := checkFrontProxy(ctx, hostClient); err != nil {
			return err
		}
	}
	dynamicClient, err := dynamic.NewForConfig(config.Generic.ClientConfig)
	if err != nil {
		return err
	}
	return checkNoCRDs(ctx, dynamicClient)
}

// startEmbeddedEtcd runs an etcd on the data directory and has objects stored there.
func (o *Options) startEmbeddedEtcd(ctx context.Context) (stop func(), err error) {
	start := o.StartEtcd
	if start == nil {
		start = func(context.Context) (*etcd.Embedded, error) { return etcd.Start(o.DataDir) }
	}
	embedded, err := start(ctx)
	if err != nil {
		return nil, err
	}
	o.embedded = embedded
	o.Recommended.Etcd.StorageConfig.Transport.ServerList = embedded.Endpoints()
	return embedded.Stop, nil
}

// applyTo completes config from the flags.
func (o *Options) applyTo(config *Config) error {
	if err := o.Run.ApplyTo(&config.Generic.Config); err != nil {
		return fmt.Errorf("applying the options: %w", err)
	}
	o.Recommended.FeatureGate = config.Generic.FeatureGate
	if o.Recommended.Admission != nil {
		// They need a host cluster, which a standalone server has not.
		o.Recommended.ExtraAdmissionInitializers = o.admissionInitializers
	}
	recommended := *o.Recommended
	if recommended.CoreAPI != nil {
		if err := o.followHost(config.Generic); err != nil {
			return err
		}
		recommended.CoreAPI = nil
	}
	if err := recommended.ApplyTo(config.Generic); err != nil {
		return fmt.Errorf("applying the options: %w", err)
	}
	if o.embedded != nil {
		config.Generic.AddReadyzChecks(healthz.NamedCheck("etcd-member", func(r *http.Request) error { return o.embedded.Health(r.Context()) }))
	}
	return nil
}

// hostResync is how often what admission knows of the host cluster is gone through again, as by CoreAPIOptions.
const hostResync = 10 * time.Minute

// followHost does what CoreAPIOptions do, by HostConfig, and has authentication reach the host like that too: informers go on soon
// after the host API server was away. By them admission learns of namespaces, quotas, policies and webhooks, and fairness of its
// levels.
func (o *Options) followHost(config *genericapiserver.RecommendedConfig) error {
	host, err := o.HostConfig()
	if err != nil {
		return err
	}
	// The provider is known once the other options are applied, before the client of admission is made.
	host.Wrap(func(next http.RoundTripper) http.RoundTripper { return tracing.WrapperFor(config.TracerProvider)(next) })
	client, err := kubernetes.NewForConfig(host)
	if err != nil {
		return fmt.Errorf("making the API's client of the host cluster: %w", err)
	}
	config.ClientConfig = host
	config.SharedInformerFactory = informers.NewSharedInformerFactory(client, hostResync)
	o.Recommended.Authentication.WithCustomRoundTripper(reconnect.Watches)
	return nil
}
