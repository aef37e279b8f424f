package apiserver

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/utils/clock"

	namespacelifecycle "github.com/knative-apiserver/knative-apiserver/pkg/admission/namespace"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	networkingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/networking/v1alpha1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	servingv1beta1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1beta1"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/pkg/identity"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/core"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/core/configmap"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/core/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/core/namespace"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/core/secret"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/core/serviceaccount"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/eventing/broker"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/eventing/deadletter"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/eventing/eventpolicy"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/eventing/eventrun"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/eventing/links"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/eventing/trigger"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/eventtrace"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/messaging/channel"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/messaging/subscription"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/networking/clusterdomainclaim"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/objectmetrics"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/serving/configuration"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/serving/domainmapping"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/serving/revision"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/serving/route"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/serving/service"
)

// groups builds the served resources, one list for each API group.
type groups struct {
	scheme      *runtime.Scheme
	codecs      serializer.CodecFactory
	getter      generic.RESTOptionsGetter
	controllers identity.Controllers
	settings    func() servingv1.Settings
	eventing    func() eventingv1.Settings
	messaging   func() messagingv1.Settings
	logs        revision.LogOptions
	explainer   *revision.LateExplainer
	proxy       *service.LateGateway
	traces      *eventtrace.Late
	// deadLetters is what deadletters returns, which are served if storesDead is true.
	deadLetters *deadletter.Late
	storesDead  bool
	matcher     *trigger.LateMatcher
	tails       *broker.LateTails
	metrics     *objectmetrics.Late
	// authorizer decides about permissions that strategies require.
	authorizer authorizer.Authorizer
	// clusterDomain is the DNS domain of the cluster.
	clusterDomain string
	// processes is true if Revisions run as processes of this machine.
	processes bool
	encoded   *listCache
}

func (g *groups) all() ([]*genericapiserver.APIGroupInfo, error) {
	services, configurations := service.Resource(g.controllers, g.settings), configuration.Resource(g.controllers, g.settings)
	if g.processes {
		services.Warnings = func(s *servingv1.Service) []string { return servingv1.WarnProcessService(s, g.settings()) }
		configurations.Warnings = servingv1.WarnProcessConfiguration
	}
	serving, err := g.group(servingv1.SchemeGroupVersion,
		g.storage(service.NewStorage(services, g.proxy, g.scheme, g.getter)),
		g.storage(registry.NewStorage(configurations, g.scheme, g.getter)),
		g.storage(revision.NewStorage(g.controllers, g.settings, g.logs, g.explainer, g.scheme, g.getter)),
		g.storage(registry.NewStorage(route.Resource(g.controllers, g.settings), g.scheme, g.getter)),
	)
	if err != nil {
		return nil, err
	}
	err = addVersion(serving, servingv1beta1.SchemeGroupVersion,
		g.storage(registry.NewStorage(domainmapping.Resource(g.controllers, g.settings, g.clusterDomain), g.scheme, g.getter)),
		g.storage(map[string]rest.Storage{"servicemetrics": objectmetrics.NewServices(g.metrics)}, nil),
	)
	if err != nil {
		return nil, err
	}
	networking, err := g.group(networkingv1alpha1.SchemeGroupVersion,
		g.storage(registry.NewStorage(clusterdomainclaim.Resource(g.controllers), g.scheme, g.getter)),
	)
	if err != nil {
		return nil, err
	}
	allowed := &links.Links{Authorizer: g.authorizer, Enabled: func() bool { return g.eventing().Links }}
	authenticated := func() bool { return g.eventing().OIDC }
	brokers, err := registry.NewStorage(broker.Resource(g.controllers, g.eventing), g.scheme, g.getter)
	if err != nil {
		return nil, fmt.Errorf("API group %s: %w", eventingv1.GroupName, err)
	}
	brokers["brokers/tail"] = &broker.Tail{Brokers: brokers["brokers"].(rest.Getter), Tails: g.tails, Authorizer: g.authorizer, Stopping: g.logs.Stopping}
	brokers["brokers/trace"] = g.trace(eventing.Broker, brokers["brokers"])
	triggers, err := registry.NewStorage(trigger.Resource(g.controllers, brokers["brokers"].(rest.Getter), allowed, authenticated, g.matcher), g.scheme, g.getter)
	if err != nil {
		return nil, fmt.Errorf("API group %s: %w", eventingv1.GroupName, err)
	}
	triggers["triggers/match"] = trigger.NewMatch(triggers["triggers"].(rest.Getter), g.matcher)
	eventRuns, runs, err := eventrun.NewStorage(g.controllers, g.scheme, g.getter)
	if err != nil {
		return nil, fmt.Errorf("API group %s: %w", eventingv1alpha1.GroupName, err)
	}
	brokers["brokers/replay"] = eventrun.NewReplay(brokers["brokers"].(rest.Getter), triggers["triggers"].(rest.Getter), runs, clock.RealClock{})
	triggers["triggers/redrive"] = eventrun.NewRedrive(eventrun.Targets{
		Kind: eventingv1.SchemeGroupVersion.WithKind("Trigger"), Resource: eventingv1.Resource("triggers"), Objects: triggers["triggers"].(rest.Getter),
	}, runs)
	eventingInfo, err := g.group(eventingv1.SchemeGroupVersion, g.storage(brokers, nil), g.storage(triggers, nil))
	if err != nil {
		return nil, err
	}
	alpha := []resourceStorage{
		g.storage(registry.NewStorage(eventpolicy.Resource(g.controllers, g.eventing), g.scheme, g.getter)),
		g.storage(eventRuns, nil),
		g.storage(map[string]rest.Storage{"eventmetrics": objectmetrics.NewEvents(g.metrics)}, nil),
	}
	if g.storesDead {
		alpha = append(alpha, g.storage(map[string]rest.Storage{"deadletters": deadletter.NewREST(g.deadLetters)}, nil))
	}
	err = addVersion(eventingInfo, eventingv1alpha1.SchemeGroupVersion, alpha...)
	if err != nil {
		return nil, err
	}
	channels, err := registry.NewStorage(channel.Resource(g.controllers, g.messaging, authenticated), g.scheme, g.getter)
	if err != nil {
		return nil, fmt.Errorf("API group %s: %w", messagingv1.GroupName, err)
	}
	channels["channels/trace"] = g.trace(eventing.Channel, channels["channels"])
	subscriptions, err := registry.NewStorage(subscription.Resource(g.controllers, allowed, authenticated), g.scheme, g.getter)
	if err != nil {
		return nil, fmt.Errorf("API group %s: %w", messagingv1.GroupName, err)
	}
	subscriptions["subscriptions/redrive"] = eventrun.NewRedrive(eventrun.Targets{
		Kind: messagingv1.SchemeGroupVersion.WithKind("Subscription"), Resource: messagingv1.Resource("subscriptions"), Objects: subscriptions["subscriptions"].(rest.Getter),
	}, runs)
	messaging, err := g.group(messagingv1.SchemeGroupVersion, g.storage(channels, nil), g.storage(subscriptions, nil))
	if err != nil {
		return nil, err
	}
	return []*genericapiserver.APIGroupInfo{serving, eventingInfo, messaging, networking}, nil
}

// trace returns the subresource trace of a kind.
func (g *groups) trace(kind eventing.Kind, parents rest.Storage) rest.Storage {
	return &eventtrace.REST{Kind: kind, Parents: parents.(rest.Getter), Traces: g.traces, Authorizer: g.authorizer}
}

// core returns the resources of core/v1 that a server without a host cluster serves, and configures namespaces to admit
// objects by the stored Namespaces.
func (g *groups) core(namespaces *namespacelifecycle.Lifecycle) (*genericapiserver.APIGroupInfo, error) {
	stored := g.storage(namespace.NewStorage(g.scheme, g.getter))
	if storage, ok := stored.paths["namespaces"].(namespacelifecycle.Storage); ok {
		namespaces.SetStorage(storage)
	}
	info, err := g.group(corev1.SchemeGroupVersion,
		g.storage(event.NewStorage(g.scheme, g.getter)),
		stored,
		g.storage(core.NewStorage(configmap.Resource(), g.scheme, g.getter)),
		g.storage(core.NewStorage(secret.Resource(), g.scheme, g.getter)),
		g.storage(core.NewStorage(serviceaccount.Resource(), g.scheme, g.getter)),
	)
	if err != nil {
		return nil, err
	}
	// In contrast to the server's own kinds, these have a protobuf encoding, which typed clients prefer.
	info.NegotiatedSerializer = g.codecs
	return info, nil
}

// resourceStorage is the result of building one resource's storage.
type resourceStorage struct {
	paths map[string]rest.Storage
	err   error
}

func (g *groups) storage(paths map[string]rest.Storage, err error) resourceStorage {
	return resourceStorage{paths, err}
}

// group returns an API group with the resources of one version.
func (g *groups) group(gv schema.GroupVersion, resources ...resourceStorage) (*genericapiserver.APIGroupInfo, error) {
	info := genericapiserver.NewDefaultAPIGroupInfo(gv.Group, g.scheme, runtime.NewParameterCodec(g.scheme), g.codecs)
	info.NegotiatedSerializer = newNegotiatedSerializer(info.NegotiatedSerializer, g.encoded)
	return &info, addVersion(&info, gv, resources...)
}

// addVersion adds the resources of a version to an API group.
func addVersion(info *genericapiserver.APIGroupInfo, gv schema.GroupVersion, resources ...resourceStorage) error {
	storage := map[string]rest.Storage{}
	for _, r := range resources {
		if r.err != nil {
			return fmt.Errorf("API group %s: %w", gv, r.err)
		}
		for path, s := range r.paths {
			storage[path] = s
		}
	}
	info.VersionedResourcesStorageMap[gv.Version] = storage
	return nil
}
