package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/app/lifecycle"
	brokercontroller "github.com/knative-apiserver/knative-apiserver/pkg/controllers/broker"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/channel"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/destination"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/subscription"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/trigger"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/broker"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/ingress"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/logqueue"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/egress"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/pkg/origin"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/leader"
)

// channelPath is the first element of the paths of Channels, which distinguishes them from Brokers of the same name.
const channelPath = "channels"

// catchUpTimeout limits the time that a starting replica waits for its copy of the event log.
const catchUpTimeout = 30 * time.Second

// eventingModules is Eventing: the controllers of Brokers and Channels, then the controllers of Triggers and Subscriptions, which need
// the streams, and the broker that accepts and delivers events.
type eventingModules struct {
	streams   *controllers
	consumers *consumers
	broker    *brokerModule
}

// dataPlane serves the streams and consumers of this replica, or all without peers.
type dataPlane interface {
	eventing.Streams
	eventing.Consumers
	Accept(ctx context.Context, stream eventing.Key, events []*event.Event) error
	Exists(stream eventing.Key) bool
	Start(ctx context.Context) error
	Stop(timeout time.Duration)
}

// eventingOptions are the dependencies of Eventing.
type eventingOptions struct {
	EventingConfig
	registry metricsRegistry
	clients  *clients
	// clusterDomain is the DNS domain of the cluster.
	clusterDomain string
	// address returns the address at which a stream accepts events.
	address func(eventing.Key) duckv1.Addressable
	// host has the kinds of the host cluster that destinations may refer to. Nil if there is no host cluster.
	host *destination.Host
	// channelServices are the core Services of Channels. Nil without a host cluster.
	channelServices channel.Services
	// allowCrossNamespace and network are options of the Resolver.
	allowCrossNamespace bool
	network             destination.Network
	// replica is nil without peers.
	replica *replica
	// budget limits the memory of events and deliveries.
	budget *flow.Budget
	// guard decides to which addresses events may be sent.
	guard *egress.Guard
	// discloses reports whether the users of a namespace may see the responses of a host.
	discloses sender.Disclosure
}

// newEventing opens the event log and returns the modules of Eventing. The broker closes the event log when it stops.
func newEventing(ctx context.Context, o eventingOptions) (_ *eventingModules, err error) {
	o.Log.Logger, o.Log.Register = klog.FromContext(ctx), o.registry.MustRegister
	log, err := eventlog.Open(ctx, o.Log)
	if err != nil {
		return nil, fmt.Errorf("open event log: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, log.Close())
		}
	}()
	known, err := newKnownObjects(o)
	if err != nil {
		return nil, err
	}
	health := &healthChanges{}
	own := o.newBroker(ctx, log, known, health)
	log.SetRestoreHooks(eventlog.RestoreHooks{Exists: known.existsNow, Restored: func(id string) {
		if err := own.Restored(ctx, types.UID(id)); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to look for restored events; they are delivered after the next ones")
		}
	}})

	m := &eventingModules{broker: &brokerModule{dataPlane: own, log: log, listener: o.Listener}}
	accepting := ingress.Options{MaxBody: o.MaxEventBytes, Budget: o.budget, TracerProvider: o.Tracing, Register: o.registry.MustRegister}
	recorder := o.clients.recorder
	var shared *sharedEventing
	if o.replica != nil {
		shared = newSharedEventing(ctx, own, o)
		m.broker.dataPlane = shared.streams
		accepting.Peers = &ingress.Forwarder{Owners: shared.owners, Transport: o.replica.Transport(), Exists: shared.streams.Exists}
		recorder = leader.Recorder(recorder, shared.ownsObject)
	}
	hosts := &eventing.ChannelHosts{Streams: m.broker.dataPlane}
	accepting.Accept, accepting.Exists, accepting.Find = m.broker.dataPlane.Accept, m.broker.dataPlane.Exists, hosts.Find
	m.broker.ingress = ingress.New(accepting)

	all, err := o.newControllers(ctx, m.broker.dataPlane, hosts, recorder)
	if err != nil {
		return nil, err
	}
	health.connect(all.triggers, all.subscriptions)
	m.streams = &controllers{name: "streams", all: []*reconciler.Controller{all.brokers, all.channels}}
	m.consumers = &consumers{controllers: controllers{name: "consumers", all: []*reconciler.Controller{all.triggers, all.subscriptions}}}
	m.streams.awaited, m.consumers.awaited = m.streams.all, m.consumers.all
	if shared != nil {
		m.consumers.log = log
		shared.lead(all.brokers, all.triggers, all.channels, all.subscriptions)
		shared.serve(o.replica, m.broker.ingress)
	}
	return m, nil
}

func (o *eventingOptions) newBroker(ctx context.Context, log *eventlog.Log, known *knownObjects, health *healthChanges) *broker.Broker {
	deliverer := sender.New(sender.Options{
		TracerProvider: o.Tracing, Dial: o.guard.Dialer(egress.ForEvents, sender.DialTimeout), Discloses: o.discloses, Budget: o.budget,
	})
	own := broker.New(klog.NewContext(ctx, klog.FromContext(ctx).WithName("broker")), broker.Options{
		Log:           logqueue.JetStream(log),
		Send:          deliverer.Send,
		Exists:        known.exists,
		Existing:      known.list,
		Address:       func(key eventing.Key) string { return o.address(key).URL },
		Clock:         clock.RealClock{},
		Budget:        o.budget,
		HealthChanged: health.Changed,
	})
	o.registry.CustomMustRegister(own)
	return own
}

// eventingControllers are the controllers of the kinds of Eventing.
type eventingControllers struct{ brokers, triggers, channels, subscriptions *reconciler.Controller }

func (o *eventingOptions) newControllers(ctx context.Context, plane dataPlane, hosts *eventing.ChannelHosts, recorder record.EventRecorder) (c eventingControllers, err error) {
	client, now := o.clients.versioned, clock.RealClock{}
	eventingKinds, messagingKinds := o.clients.informers.Eventing().V1(), o.clients.informers.Messaging().V1()
	resolver := destination.New(ctx, destination.Options{
		Informers: o.clients.informers, Host: o.host, ClusterDomain: o.clusterDomain,
		AllowCrossNamespace: o.allowCrossNamespace, Network: o.network,
	})
	c.brokers, err = (&brokercontroller.Reconciler{
		Client: client.EventingV1(), Streams: plane, Address: o.address, Recorder: recorder, Clock: now,
	}).Controller(eventingKinds, resolver)
	if err != nil {
		return c, err
	}
	c.triggers, err = (&trigger.Reconciler{
		Client: client.EventingV1(), Consumers: plane, Recorder: recorder, Clock: now,
	}).Controller(eventingKinds, resolver)
	if err != nil {
		return c, err
	}
	c.channels, err = (&channel.Reconciler{
		Client: client.MessagingV1(), Streams: hosts, Address: o.address, Services: o.channelServices, Host: o.host,
		Recorder: recorder, Clock: now,
	}).Controller(messagingKinds, resolver)
	if err != nil {
		return c, err
	}
	c.subscriptions, err = (&subscription.Reconciler{
		Client: client.MessagingV1(), Consumers: plane, Host: o.host, Recorder: recorder, Clock: now,
	}).Controller(messagingKinds, resolver)
	return c, err
}

// healthChanges passes changes of the health of deliveries to the controllers that report them. The broker that sends them is
// constructed before the controllers, which use it; connect is called before any of them runs.
type healthChanges struct{ triggers, subscriptions *reconciler.Controller }

func (h *healthChanges) connect(triggers, subscriptions *reconciler.Controller) {
	h.triggers, h.subscriptions = triggers, subscriptions
}

// Changed enqueues a consumer.
func (h *healthChanges) Changed(consumer eventing.Key) {
	name := types.NamespacedName{Namespace: consumer.Namespace, Name: consumer.Name}
	if consumer.Kind == eventing.Trigger {
		h.triggers.Enqueue(name)
	} else {
		h.subscriptions.Enqueue(name)
	}
}

// addressOf returns the address of a stream at a host and port that all streams share.
func addressOf(host string, key eventing.Key) duckv1.Addressable {
	u := url.URL{Scheme: "http", Host: host}
	if key.Kind == eventing.Channel {
		u.Path = "/" + channelPath
	}
	u.Path += "/" + key.Namespace + "/" + key.Name
	return duckv1.Addressable{URL: u.String()}
}

// byUID is the name of the index of objects by their original UID, which the event log uses.
const byUID = "uid"

// knownObjects answers which streams and consumers exist, by their original UIDs.
type knownObjects struct {
	informers []cache.SharedIndexInformer
	// list lists the UIDs of all streams and consumers in the API, where peers create objects that the informers do not know yet.
	// Nil without peers.
	list func(ctx context.Context) (sets.Set[types.UID], error)
}

func newKnownObjects(o eventingOptions) (*knownObjects, error) {
	eventingKinds, messagingKinds := o.clients.informers.Eventing().V1(), o.clients.informers.Messaging().V1()
	k := &knownObjects{list: o.existing(), informers: []cache.SharedIndexInformer{
		eventingKinds.Brokers().Informer(), eventingKinds.Triggers().Informer(), messagingKinds.Channels().Informer(), messagingKinds.Subscriptions().Informer(),
	}}
	for _, informer := range k.informers {
		err := reconciler.AddIndex(informer, byUID, func(obj any) ([]string, error) {
			if obj, ok := obj.(interface{ GetUID() types.UID }); ok {
				return []string{string(origin.UID(obj.GetUID()))}, nil
			}
			return nil, nil
		})
		if err != nil {
			return nil, err
		}
	}
	return k, nil
}

// exists reports whether the informers have an object.
func (k *knownObjects) exists(uid types.UID) bool {
	for _, informer := range k.informers {
		if found, err := informer.GetIndexer().ByIndex(byUID, string(uid)); err != nil || len(found) > 0 {
			return true
		}
	}
	return false
}

// existsNow is exists for an object that may be too new for the informers.
func (k *knownObjects) existsNow(ctx context.Context, id string) (bool, error) {
	if k.exists(types.UID(id)) || k.list == nil {
		return k.exists(types.UID(id)), nil
	}
	all, err := k.list(ctx)
	return all.Has(types.UID(id)), err
}

// consumers is the module of the controllers of Triggers and Subscriptions. It is ready when the data plane knows all of them.
type consumers struct {
	controllers
	// log is the event log of this replica, for which Ready waits. Nil without peers.
	log *eventlog.Log
}

// Ready implements lifecycle.Module.
func (m *consumers) Ready(ctx context.Context) error {
	if err := m.controllers.Ready(ctx); err != nil || m.log == nil {
		return err
	}
	m.awaitLog(ctx)
	return ctx.Err()
}

// awaitLog waits until the log of this replica has all events that it stores a copy of, because a replica should own
// streams only if it can accept events. It gives up after catchUpTimeout: there may be no other replica, or the log may be full.
func (m *consumers) awaitLog(ctx context.Context) {
	waiting, cancel := context.WithTimeout(ctx, catchUpTimeout)
	defer cancel()
	var last error
	err := wait.PollUntilContextCancel(waiting, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		last = m.log.Health(ctx)
		return last == nil, nil
	})
	if err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Info("Continuing with an under-replicated event log", "reason", last)
	}
}

// brokerModule is the module that accepts and delivers events.
type brokerModule struct {
	lifecycle.Tasks
	dataPlane dataPlane
	ingress   *ingress.Handler
	log       *eventlog.Log
	listener  net.Listener
}

// Name implements lifecycle.Module.
func (*brokerModule) Name() string { return "broker" }

// Start implements lifecycle.Module.
func (m *brokerModule) Start(ctx context.Context, fail func(error)) error {
	m.Begin(ctx, fail)
	if err := m.Init(ctx, m.dataPlane.Start); err != nil {
		return errors.Join(err, m.log.Close())
	}
	m.Go(func(ctx context.Context) error { return m.ingress.Serve(ctx, m.listener, stopTimeout) })
	return nil
}

// Retire closes each client connection after its next response, so that clients use other replicas.
func (m *brokerModule) Retire() { m.ingress.Retire() }

// Stop stops accepting events, then delivering them, and closes the event log.
func (m *brokerModule) Stop(ctx context.Context) error {
	err := m.Tasks.Stop(ctx)
	m.dataPlane.Stop(stopTimeout)
	m.ingress.Close()
	return errors.Join(err, m.log.Close())
}
