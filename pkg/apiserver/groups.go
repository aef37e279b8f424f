package apiserver

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/utils/lru"

	namespacelifecycle "github.com/knative-apiserver/knative-apiserver/pkg/admission/namespace"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/identity"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/core"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/core/configmap"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/core/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/core/namespace"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/core/secret"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/core/serviceaccount"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/eventing/broker"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/eventing/trigger"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/messaging/channel"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/messaging/subscription"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/serving/configuration"
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
	// processes is true if Revisions run as processes of this machine.
	processes bool
	encoded   *lru.Cache
}

func (g *groups) all() ([]*genericapiserver.APIGroupInfo, error) {
	services, configurations := service.Resource(g.controllers, g.settings), configuration.Resource(g.controllers, g.settings)
	if g.processes {
		services.Warnings, configurations.Warnings = servingv1.WarnProcessService, servingv1.WarnProcessConfiguration
	}
	serving, err := g.group(servingv1.GroupName,
		g.storage(registry.NewStorage(services, g.scheme, g.getter)),
		g.storage(registry.NewStorage(configurations, g.scheme, g.getter)),
		g.storage(revision.NewStorage(g.controllers, g.settings, g.logs, g.scheme, g.getter)),
		g.storage(registry.NewStorage(route.Resource(g.controllers, g.settings), g.scheme, g.getter)),
	)
	if err != nil {
		return nil, err
	}
	brokers, err := registry.NewStorage(broker.Resource(g.controllers, g.eventing), g.scheme, g.getter)
	if err != nil {
		return nil, fmt.Errorf("API group %s: %w", eventingv1.GroupName, err)
	}
	eventing, err := g.group(eventingv1.GroupName,
		g.storage(brokers, nil),
		g.storage(registry.NewStorage(trigger.Resource(g.controllers, brokers["brokers"].(rest.Getter)), g.scheme, g.getter)),
	)
	if err != nil {
		return nil, err
	}
	messaging, err := g.group(messagingv1.GroupName,
		g.storage(registry.NewStorage(channel.Resource(g.controllers, g.messaging), g.scheme, g.getter)),
		g.storage(registry.NewStorage(subscription.Resource(g.controllers), g.scheme, g.getter)),
	)
	if err != nil {
		return nil, err
	}
	return []*genericapiserver.APIGroupInfo{serving, eventing, messaging}, nil
}

// core returns the resources of core/v1 that a server without a host cluster serves, and configures namespaces to admit
// objects by the stored Namespaces.
func (g *groups) core(namespaces *namespacelifecycle.Lifecycle) (*genericapiserver.APIGroupInfo, error) {
	stored := g.storage(namespace.NewStorage(g.scheme, g.getter))
	if storage, ok := stored.paths["namespaces"].(namespacelifecycle.Storage); ok {
		namespaces.SetStorage(storage)
	}
	info, err := g.group(corev1.GroupName,
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

func (g *groups) group(name string, resources ...resourceStorage) (*genericapiserver.APIGroupInfo, error) {
	storage := map[string]rest.Storage{}
	for _, r := range resources {
		if r.err != nil {
			return nil, fmt.Errorf("API group %s: %w", name, r.err)
		}
		for path, s := range r.paths {
			storage[path] = s
		}
	}
	info := genericapiserver.NewDefaultAPIGroupInfo(name, g.scheme, runtime.NewParameterCodec(g.scheme), g.codecs)
	info.NegotiatedSerializer = newNegotiatedSerializer(info.NegotiatedSerializer, g.encoded)
	info.VersionedResourcesStorageMap["v1"] = storage
	return &info, nil
}
