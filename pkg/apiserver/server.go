// Package apiserver builds the API server from its options: aggregated behind a host cluster's kube-apiserver, or standalone.
package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	authenticatorunion "k8s.io/apiserver/pkg/authentication/request/union"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/rest"
	baseversion "k8s.io/component-base/version"

	namespacelifecycle "github.com/knative-apiserver/knative-apiserver/pkg/admission/namespace"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/identity"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/eventing/broker"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/eventing/deadletter"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/eventing/trigger"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/eventtrace"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/objectmetrics"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/serving/revision"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/serving/service"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/revisionlog"
)

// Config is the configuration of a Server.
type Config struct {
	// Generic configures serving, security and storage.
	Generic *genericapiserver.RecommendedConfig
	// Memory bounds the memory that requests hold. Nil means no bound.
	Memory Memory
	// Reads and Writes decide when calls of a namespace are served. Nil means at once.
	Reads, Writes Calls
	// DeadLetters serves the resource deadletters.
	DeadLetters bool
	// Controllers recognizes writes by controllers.
	Controllers identity.Controllers
	// Settings returns the current operator settings.
	Settings Settings
	// ClusterDomain is the DNS domain of the cluster, whose names may not be mapped.
	ClusterDomain string
	// NoAPI disables the API groups.
	NoAPI bool
	// Core serves Namespaces, ConfigMaps, Secrets, ServiceAccounts and Events of core/v1. Otherwise the host cluster serves
	// them.
	Core bool

	scheme *runtime.Scheme
	codecs serializer.CodecFactory
	// matcher is shared by the subresource match and the handler of its requests.
	matcher *trigger.LateMatcher
}

// Server is an API server that serves the Knative API groups.
type Server struct {
	// GenericAPIServer serves the requests.
	GenericAPIServer *genericapiserver.GenericAPIServer

	controllersToken string
	stored           []Stored
	logs             *revisionlog.Late
	gateway          *service.LateGateway
	explainer        *revision.LateExplainer
	traces           *eventtrace.Late
	deadLetters      *deadletter.Late
	matcher          *trigger.LateMatcher
	tails            *broker.LateTails
	metrics          *objectmetrics.Late
	tokenReviews     *TokenReviews
	accessReviews    *AccessReviews
}

// newConfig returns the configuration that does not depend on options. Nil settings mean the defaults.
func newConfig(scheme *runtime.Scheme, codecs serializer.CodecFactory, settings Settings) *Config {
	if settings == nil {
		settings = defaultSettings{}
	}
	generic := genericapiserver.NewRecommendedConfig(codecs)
	generic.LongRunningFunc = longRunning
	configureOpenAPI(&generic.Config, baseversion.Get().GitVersion)
	return &Config{
		Generic:  generic,
		Settings: settings,
		scheme:   scheme,
		codecs:   codecs,
		matcher:  &trigger.LateMatcher{},
	}
}

// New builds the server.
func (c *Config) New() (*Server, error) {
	token := identity.NewToken()
	if c.Generic.Authentication.Authenticator == nil {
		return nil, errors.New("no authenticator configured")
	}
	authenticators := []authenticator.Request{identity.Authenticator(token)}
	if headers := c.Generic.Authentication.RequestHeaderConfig; headers != nil {
		authenticators = append(authenticators, newFrontProxy(headers))
	}
	c.Generic.Authentication.Authenticator = authenticatorunion.New(append(authenticators, c.Generic.Authentication.Authenticator)...)

	var namespaces *namespacelifecycle.Lifecycle
	if c.Core {
		namespaces = namespacelifecycle.New(c.Controllers, namespacelifecycle.Permanent()...)
		c.Generic.AdmissionControl = namespaces
	}
	servingv1.RegisterSettings(c.scheme, c.Settings.API)
	c.Generic.BuildHandlerChainFunc = c.handlerChain
	server, err := c.Generic.Complete().New("knative-apiserver", genericapiserver.NewEmptyDelegate())
	if err != nil {
		return nil, err
	}
	built := &Server{GenericAPIServer: server, controllersToken: token, logs: &revisionlog.Late{}, gateway: &service.LateGateway{}, explainer: &revision.LateExplainer{}, traces: &eventtrace.Late{}, matcher: c.matcher, tails: &broker.LateTails{}, deadLetters: &deadletter.Late{}, metrics: &objectmetrics.Late{}}
	if c.NoAPI {
		return built, nil
	}
	logs, err := logOptions(server, c.Generic.ClientConfig, built.logs)
	if err != nil {
		return nil, err
	}
	groups := groups{
		scheme:        c.scheme,
		codecs:        c.codecs,
		getter:        c.Generic.RESTOptionsGetter,
		controllers:   c.Controllers,
		settings:      c.Settings.API,
		eventing:      c.Settings.Eventing,
		messaging:     c.Settings.Messaging,
		logs:          logs,
		explainer:     built.explainer,
		proxy:         built.gateway,
		traces:        built.traces,
		deadLetters:   built.deadLetters,
		storesDead:    c.DeadLetters,
		matcher:       built.matcher,
		tails:         built.tails,
		metrics:       built.metrics,
		authorizer:    c.Generic.Authorization.Authorizer,
		clusterDomain: c.ClusterDomain,
		processes:     c.Core,
		encoded:       newListCache(),
	}
	infos, err := groups.all()
	if err != nil {
		return nil, err
	}
	built.stored = stored(infos)
	for _, info := range infos {
		if err := server.InstallAPIGroup(info); err != nil {
			return nil, fmt.Errorf("install API group %s: %w", info.PrioritizedVersions[0].Group, err)
		}
	}
	if c.Core {
		core, err := groups.core(namespaces)
		if err != nil {
			return nil, err
		}
		if err := server.InstallLegacyAPIGroup(genericapiserver.DefaultLegacyAPIPrefix, core); err != nil {
			return nil, fmt.Errorf("install core/v1: %w", err)
		}
	}
	return built, nil
}

// ControllersConfig returns the client configuration of the in-process controllers, with the only identity that may create
// Revisions.
func (s *Server) ControllersConfig() *rest.Config {
	config := rest.CopyConfig(s.GenericAPIServer.LoopbackClientConfig)
	config.BearerToken = s.controllersToken
	return config
}

// Stored returns the resources of the Knative API groups that this server stores: none without the API.
func (s *Server) Stored() []Stored { return s.stored }

// SetGateway sets the gateway of the subresource services/proxy.
func (s *Server) SetGateway(gateway service.Gateway) { s.gateway.Set(gateway) }

// SetExplainer sets the explainer of the subresource revisions/explain.
func (s *Server) SetExplainer(explainer revision.Explainer) { s.explainer.Set(explainer) }

// SetTraces sets what the subresource trace of Brokers and Channels returns.
func (s *Server) SetTraces(traces eventtrace.Traces) { s.traces.Set(traces) }

// SetDeadLetters sets what the resource deadletters returns.
func (s *Server) SetDeadLetters(letters deadletter.DeadLetters) { s.deadLetters.Set(letters) }

// SetObjectMetrics sets what the resources servicemetrics and eventmetrics return.
func (s *Server) SetObjectMetrics(reader objectmetrics.Reader) { s.metrics.Set(reader) }

// SetMatcher sets what decides about events for Triggers.
func (s *Server) SetMatcher(matcher trigger.Matcher) { s.matcher.Set(matcher) }

// SetTails sets what the subresource tail of Brokers returns.
func (s *Server) SetTails(tails broker.Tails) { s.tails.Set(tails) }

// Run serves until ctx is canceled, and calls ready once the API is served. The context of ready ends when the server stops accepting
// requests, which is the shutdown delay after ctx ends. Run returns after ready. An error of ready stops the server, and Run
// returns it.
func (s *Server) Run(ctx context.Context, ready func(ctx context.Context) error) error {
	prepared := s.GenericAPIServer.PrepareRun()
	running, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	serving, stop := context.WithCancel(context.WithoutCancel(running))
	defer context.AfterFunc(running, func() { time.AfterFunc(s.GenericAPIServer.ShutdownDelayDuration, stop) })()
	var beside sync.WaitGroup
	beside.Go(func() {
		if s.waitUntilReady(running) != nil {
			return
		}
		if err := ready(serving); err != nil {
			fail(err)
		}
	})
	err := prepared.RunWithContext(running)
	stop()
	beside.Wait()
	if cause := context.Cause(running); ctx.Err() == nil && cause != nil {
		return cause
	}
	return err
}

// waitUntilReady returns when /readyz of the API reports success, or with the error of ctx. It polls in process, because no
// watch is available during startup.
func (s *Server) waitUntilReady(ctx context.Context) error {
	client, err := rest.HTTPClientFor(s.GenericAPIServer.LoopbackClientConfig)
	if err != nil {
		return err
	}
	url := s.GenericAPIServer.LoopbackClientConfig.Host + "/readyz?exclude=" + componentsCheck
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		if response, err := client.Do(request); err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}
