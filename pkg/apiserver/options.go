package apiserver

import (
	"cmp"
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
	"k8s.io/apiserver/pkg/admission"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/tracing"

	"github.com/knative-apiserver/knative-apiserver/pkg/etcd"
	"github.com/knative-apiserver/knative-apiserver/pkg/host"
)

// etcdPrefix is the default prefix of objects in etcd. --etcd-prefix overrides it.
const etcdPrefix = "/registry/knative"

// watchGracePeriod bounds the wait for watches to close during shutdown.
const watchGracePeriod = 5 * time.Second

// Options configure an aggregated API server.
type Options struct {
	Recommended *genericoptions.RecommendedOptions
	Run         *genericoptions.ServerRunOptions
	// DataDir is the data directory of the embedded etcd, used if no etcd servers are configured.
	DataDir string
	// ControllersUsers are further users that count as controllers; see identity.Controllers.
	ControllersUsers []string
	// SystemNamespace is the namespace of the server in the host cluster. Restores are completed if it is set.
	SystemNamespace string
	// NoAPI disables the API groups, etcd and admission, so that only health checks and metrics are served.
	NoAPI bool

	scheme *runtime.Scheme
	codecs serializer.CodecFactory
}

// NewOptions returns options with default values.
func NewOptions() *Options {
	scheme := newScheme()
	codecs := serializer.NewCodecFactory(scheme)
	recommended := genericoptions.NewRecommendedOptions(etcdPrefix, storageCodec(scheme, codecs))
	recommended.Etcd.StorageConfig.EncodeVersioner = schema.GroupVersions(storedVersions())
	addAdmissionPlugins(recommended.Admission)
	run := genericoptions.NewServerRunOptions()
	// The host's garbage collector always has open watches. With the library's default of 0, their connections would
	// delay the end of the process for a minute without serving requests.
	run.ShutdownWatchTerminationGracePeriod = watchGracePeriod
	return &Options{
		Recommended: recommended,
		Run:         run,
		DataDir:     "/var/lib/knative-apiserver",
		scheme:      scheme,
		codecs:      codecs,
	}
}

// AddFlags adds the flags to named sections.
func (o *Options) AddFlags(fss *cliflag.NamedFlagSets) {
	generic := fss.FlagSet("generic")
	generic.StringVar(&o.DataDir, "data-dir", o.DataDir,
		"Directory of the embedded etcd's data, which is used if --etcd-servers is empty, and of the embedded event log's data.")
	addControllersUserFlag(generic, &o.ControllersUsers)
	o.Run.AddUniversalFlags(generic)
	o.Recommended.CoreAPI.AddFlags(generic)
	o.Recommended.Etcd.AddFlags(fss.FlagSet("etcd"))
	o.Recommended.SecureServing.AddFlags(fss.FlagSet("secure serving"))
	o.Recommended.Audit.AddFlags(fss.FlagSet("auditing"))
	o.Recommended.Features.AddFlags(fss.FlagSet("features"))
	o.Recommended.Authentication.AddFlags(fss.FlagSet("authentication"))
	o.Recommended.Authorization.AddFlags(fss.FlagSet("authorization"))
	o.Recommended.Admission.AddFlags(fss.FlagSet("admission"))
	o.Recommended.EgressSelector.AddFlags(fss.FlagSet("egress selector"))
	o.Recommended.Traces.AddFlags(fss.FlagSet("traces"))
}

// addControllersUserFlag registers the flag of further users that count as controllers.
func addControllersUserFlag(flags *pflag.FlagSet, users *[]string) {
	flags.StringSliceVar(users, "controllers-user", *users,
		"Names of users with the permissions of the in-process controllers: creating Revisions, setting the subscribers of Channels and writing status. "+
			"Users that may impersonate one of them have these permissions too. Empty allows no other users.")
}

// CompletedOptions are Options with all values that depend on other options. Only Complete creates them.
type CompletedOptions struct{ *completedOptions }

type completedOptions struct{ Options }

// Complete returns a copy of the options with all values that depend on other options.
func (o *Options) Complete() CompletedOptions {
	completed := &completedOptions{*o}
	recommended, serving := *o.Recommended, *o.Recommended.SecureServing.SecureServingOptions
	recommended.SecureServing = serving.WithLoopback()
	completed.Recommended = &recommended
	if o.NoAPI {
		features := *o.Recommended.Features
		features.EnablePriorityAndFairness = false
		recommended.Etcd, recommended.Admission, recommended.Features = nil, nil, &features
	} else {
		etcd := *o.Recommended.Etcd
		recommended.Etcd = &etcd
	}
	return CompletedOptions{completed}
}

// Validate returns all errors of the options.
func (o CompletedOptions) Validate() error {
	var errs []error
	recommended := *o.Recommended
	if o.embedsEtcd() {
		if o.DataDir == "" {
			errs = append(errs, errors.New("one of --etcd-servers and --data-dir must be set"))
		}
		// The address of the embedded etcd is known once it runs.
		etcd := *recommended.Etcd
		etcd.StorageConfig.Transport.ServerList = []string{embeddedEtcd}
		recommended.Etcd = &etcd
	}
	errs = append(errs, recommended.Validate()...)
	errs = append(errs, o.Run.Validate()...)
	return utilerrors.NewAggregate(errs)
}

// defaultClusterDomain is the DNS domain of most clusters.
const defaultClusterDomain = "cluster.local"

// componentsCheck is the name of the /readyz check that the components have started. Their later health does not affect the
// readiness of the API.
const componentsCheck = "components"

// embeddedEtcd is a placeholder for the address of the embedded etcd during validation.
const embeddedEtcd = "embedded"

// RunServer serves until ctx is canceled.
func (o CompletedOptions) RunServer(ctx context.Context, d Dependencies) error {
	config := newConfig(o.scheme, o.codecs, d.Settings)
	config.ClusterDomain = cmp.Or(d.ClusterDomain, defaultClusterDomain)
	config.Memory, config.Reads, config.Writes = d.Memory, d.Reads, d.Writes
	config.DeadLetters = d.DeadLetters
	config.Controllers.UserNames = o.ControllersUsers
	config.NoAPI = o.NoAPI
	if d.ServingCertificate != nil {
		o.Recommended.SecureServing.ServerCert.GeneratedCert = d.ServingCertificate
	}
	if o.embedsEtcd() {
		start := d.StartEtcd
		if start == nil {
			start = func(context.Context) (*etcd.Embedded, error) { return etcd.Start(o.DataDir) }
		}
		embedded, err := start(ctx)
		if err != nil {
			return err
		}
		defer embedded.Stop()
		o.store(config, embedded, d)
	}
	if err := o.applyTo(config); err != nil {
		return err
	}
	if !o.NoAPI {
		if err := o.prepareAPI(ctx, config); err != nil {
			return err
		}
	}
	if err := awaitFrontProxyCA(ctx, &config.Generic.Config); err != nil {
		return err
	}
	var started atomic.Bool
	config.Generic.AddReadyzChecks(healthz.NamedCheck(componentsCheck, func(*http.Request) error {
		switch {
		case started.Load():
			return nil
		case d.Components == nil:
			return errNotStarted
		}
		return errors.Join(errNotStarted, d.Components.Ready())
	}))
	server, err := config.New()
	if err != nil {
		return err
	}
	return server.Run(ctx, func(ctx context.Context) error {
		if d.Components != nil {
			if err := d.Components.Start(ctx, server); err != nil {
				return err
			}
		}
		started.Store(true)
		return nil
	})
}

// errNotStarted is the error of componentsCheck until the components have started.
var errNotStarted = errors.New("not started yet")

// embedsEtcd reports whether the server runs an etcd of its own.
func (o CompletedOptions) embedsEtcd() bool {
	return !o.NoAPI && len(o.Recommended.Etcd.StorageConfig.Transport.ServerList) == 0
}

// store configures an embedded etcd as the storage.
func (o *Options) store(config *Config, embedded *etcd.Embedded, d Dependencies) {
	if d.Collect != nil {
		d.Collect(embedded.Metrics())
	}
	o.Recommended.Etcd.StorageConfig.Transport.ServerList = embedded.Endpoints()
	config.Generic.AddReadyzChecks(healthz.NamedCheck("etcd-member", func(r *http.Request) error { return embedded.Health(r.Context()) }))
}

// HostConfig returns the client configuration of the host cluster, from --kubeconfig or the ServiceAccount.
func (o *Options) HostConfig() (*rest.Config, error) {
	return host.NewConfig(o.Recommended.CoreAPI.CoreAPIKubeconfigPath)
}

// prepareAPI checks the host cluster and completes an interrupted restore before the API is served.
func (o *Options) prepareAPI(ctx context.Context, config *Config) error {
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
	if err := checkNoCRDs(ctx, dynamicClient); err != nil {
		return err
	}
	if o.SystemNamespace == "" {
		return nil
	}
	return o.completeRestore(ctx, config)
}

// applyTo applies the options to config.
func (o *Options) applyTo(config *Config) error {
	if err := o.Run.ApplyTo(&config.Generic.Config); err != nil {
		return fmt.Errorf("apply options: %w", err)
	}
	o.Recommended.FeatureGate = config.Generic.FeatureGate
	if o.Recommended.Admission != nil {
		// The initializers require a host cluster, which a standalone server does not have.
		o.Recommended.ExtraAdmissionInitializers = func(generic *genericapiserver.RecommendedConfig) ([]admission.PluginInitializer, error) {
			return admissionInitializers(generic, config.Settings.PodDefaults)
		}
	}
	recommended := *o.Recommended
	if recommended.CoreAPI != nil {
		if err := o.followHost(config.Generic); err != nil {
			return err
		}
		recommended.CoreAPI = nil
	}
	if err := recommended.ApplyTo(config.Generic); err != nil {
		return fmt.Errorf("apply options: %w", err)
	}
	return nil
}

// hostResync is the resync period of admission's informers, as in CoreAPIOptions.
const hostResync = 10 * time.Minute

// followHost replaces CoreAPIOptions with a client from HostConfig, and configures authentication to use the same transport, so
// that informers resume shortly after an outage of the host API server. Admission uses them for namespaces, quotas, policies and
// webhooks, and fairness for its priority levels.
func (o *Options) followHost(generic *genericapiserver.RecommendedConfig) error {
	config, err := o.HostConfig()
	if err != nil {
		return err
	}
	// The TracerProvider is set once the other options are applied, before the client of admission is created.
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return tracing.WrapperFor(generic.TracerProvider)(next)
	})
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("create client of the host cluster: %w", err)
	}
	generic.ClientConfig = config
	generic.SharedInformerFactory = informers.NewSharedInformerFactory(client, hostResync)
	o.Recommended.Authentication.WithCustomRoundTripper(host.Watches)
	return nil
}
