package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/app/lifecycle"
	"github.com/knative-apiserver/knative-apiserver/pkg/certs"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/authorization"
	brokercontroller "github.com/knative-apiserver/knative-apiserver/pkg/controllers/broker"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/channel"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/destination"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/eventpolicy"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/senderaccount"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/subscription"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/trigger"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/archive"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/broker"
	deadletterstore "github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/deadletter"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/eventrun"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/ingress"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/logqueue"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/senders"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/streams"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/tail"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/tokens"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/trace"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/reviews"
	"github.com/knative-apiserver/knative-apiserver/pkg/deadletter"
	"github.com/knative-apiserver/knative-apiserver/pkg/egress"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventmatch"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventtail"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventtrace"
	"github.com/knative-apiserver/knative-apiserver/pkg/origin"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/leader"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/ownership"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
	"github.com/knative-apiserver/knative-apiserver/pkg/telemetry"
)

// channelPath is the first element of the paths of Channels, which distinguishes them from Brokers of the same name.
const channelPath = "channels"

// catchUpTimeout limits the time that a starting replica waits for its copy of the event log.
const catchUpTimeout = 30 * time.Second

// eventingModules is Eventing: the controllers of Brokers and Channels, then the controllers of Triggers and Subscriptions, which need
// the streams, and the broker that accepts and delivers events.
type eventingModules struct {
	// authority is nil if another module maintains the authority of the broker.
	authority *ingressAuthority
	streams   *controllers
	consumers *consumers
	broker    *brokerModule
	// traces is nil if nothing is recorded.
	traces *eventtrace.Traces
	// deadLetters is nil without the dead letter store.
	deadLetters *deadletter.DeadLetters
	// matcher decides about events for Triggers, tails shows the events of Brokers live.
	matcher *eventmatch.Matcher
	tails   *eventtail.Tails
}

// dataPlane serves the streams and consumers of this replica, or all without peers.
type dataPlane interface {
	eventing.Streams
	eventing.Consumers
	Accept(ctx context.Context, stream eventing.Key, events []*event.Event) error
	Exists(stream eventing.Key) bool
	// Consumers returns the consumers of a stream, whichever replica owns it.
	Consumers(stream eventing.Key) []eventing.Consumer
	Start(ctx context.Context) error
	Stop(timeout time.Duration)
}

// eventingOptions are the dependencies of Eventing.
type eventingOptions struct {
	EventingConfig
	registry metricsRegistry
	clients  *clients
	settings *settings.Store
	// tracing makes the spans of events and deliveries.
	tracing *telemetry.Tracing
	// reviews verifies senders of events.
	reviews *reviews.Reviews
	// accounts creates the ServiceAccounts of Triggers and Subscriptions, and tokens has their tokens.
	accounts senderaccount.Source
	tokens   *tokens.Tokens
	// clusterDomain is the DNS domain of the cluster.
	clusterDomain string
	// dataDir is the directory of the server's data. Empty if it stores none.
	dataDir string
	// plain returns the URL at which a stream accepts events without TLS.
	plain func(eventing.Key) string
	// secure is the listener with TLS. Nil without one.
	secure *secureIngress
	// core reads the trust bundles of the namespace of faults.
	core   kubernetes.Interface
	faults *faults
	// configMaps has the metadata of all ConfigMaps. Nil if they cannot be watched.
	configMaps cache.SharedIndexInformer
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
	o.Log.Logger, o.Log.Register, o.Log.Cached = klog.FromContext(ctx), o.registry.MustRegister, o.budget.Cache
	log, err := eventlog.Open(ctx, o.Log)
	if err != nil {
		return nil, fmt.Errorf("open event log: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, log.Close())
		}
	}()
	o.registry.CustomMustRegister(log.Metrics())
	known, err := newKnownObjects(o)
	if err != nil {
		return nil, err
	}
	traces := o.openTraces(ctx)
	defer func() {
		if err != nil {
			traces.Close()
		}
	}()
	health := &healthChanges{}
	at := &addresses{plain: o.plain, encryption: func() settings.TransportEncryption { return o.settings.Get().TransportEncryption }, secure: o.secure, authenticated: o.authenticated}
	deliverer := sender.New(sender.Options{
		TracerProvider: o.tracing.Provider(), Traced: o.tracing.Enabled, Dial: o.guard.Dialer(egress.ForEvents, sender.DialTimeout), Discloses: o.discloses, Budget: o.budget,
	})
	tails := &eventtail.Tails{Hub: &tail.Hub{}}
	store, archives := o.newDeadLetterStore(ctx, log, known), o.newArchives(ctx, log, known)
	own := o.newBroker(ctx, log, known, health, at, deliverer, traces, tails.Hub, store, archives)
	log.SetRestoreHooks(eventlog.RestoreHooks{Exists: known.existsNow, Restored: func(id string) {
		if err := own.Restored(ctx, id); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to look for restored events; they are delivered after the next ones")
		}
	}})

	m := &eventingModules{broker: &brokerModule{dataPlane: own, log: log, traces: traces, tails: tails.Hub, deadLetters: store, archives: archives, listener: o.Listener, tls: o.TLS, secure: o.secure, trust: o.trustBundles(deliverer)}}
	accepting := ingress.Options{MaxBody: o.MaxEventBytes, Budget: o.budget, TracerProvider: o.tracing.Provider(), Traced: o.tracing.Enabled, Register: o.registry.MustRegister, Serves: at.serves}
	recorder := o.clients.recorder
	var shared *sharedEventing
	if o.replica != nil {
		shared = newSharedEventing(ctx, own, o)
		m.broker.dataPlane = shared.streams
		accepting.Peers = &ingress.Forwarder{Owners: shared.owners, Router: shared.streams.Route, Transport: o.replica.Transport(), Exists: shared.streams.Exists}
		recorder = leader.Recorder(recorder, shared.ownsObject)
	} else {
		alone := ownership.NewTable(membership.Alone(), streams.Place)
		m.broker.dataPlane = streams.New(ctx, streams.Options{Broker: own, Owners: alone})
	}
	table := &senders.Table{Streams: m.broker.dataPlane, Reviews: o.reviews}
	hosts := &eventing.ChannelHosts{Streams: table}
	accepting.Accept, accepting.Exists, accepting.Find = m.broker.dataPlane.Accept, m.broker.dataPlane.Exists, hosts.Find
	accepting.Senders = table
	m.broker.ingress = ingress.New(accepting)

	resolver := destination.New(ctx, destination.Options{
		Informers: o.clients.informers, Host: o.host, ClusterDomain: o.clusterDomain,
		AllowCrossNamespace: o.allowCrossNamespace, Network: o.network,
	})
	all, err := o.newControllers(m.broker.dataPlane, resolver, table, hosts, recorder, at, archives)
	if err != nil {
		return nil, err
	}
	all.followAddresses(o, at)
	health.connect(all.triggers, all.subscriptions)
	if m.broker.runs, all.runs, err = o.newRuns(ctx, own, deliverer, resolver, store, archives); err != nil {
		return nil, err
	}
	if o.secure != nil && o.secure.run != nil {
		m.authority = &ingressAuthority{run: o.secure.run}
	}
	records := &eventtrace.Replicas{Store: traces}
	if store != nil {
		m.deadLetters = &deadletter.DeadLetters{Store: store, Exists: known.exists, Consumer: o.consumerUID}
	}
	m.matcher, m.tails, tails.Exists = &eventmatch.Matcher{}, tails, m.broker.dataPlane.Exists
	if traces != nil {
		m.traces = o.newTraces(records, m.broker.dataPlane, own)
		m.matcher.Recent = func(ctx context.Context, stream eventing.Key) []*event.Event {
			// Another owner may have accepted later events.
			uid, found := m.traces.UID(stream)
			if !found || shared != nil && !shared.owners.Owns(stream) {
				return nil
			}
			return eventmatch.Events(traces.Recent(ctx, stream, uid, eventmatch.MaxRecent))
		}
	}
	m.streams = &controllers{name: "streams", all: []*reconciler.Controller{all.policies, all.brokers, all.channels}}
	m.consumers = &consumers{controllers: controllers{name: "consumers", all: []*reconciler.Controller{all.triggers, all.subscriptions, all.runs}}}
	m.streams.awaited, m.consumers.awaited = m.streams.all, []*reconciler.Controller{all.triggers, all.subscriptions}
	if shared != nil {
		m.consumers.log = log
		shared.lead(all)
		shared.serve(o.replica, m.broker.ingress)
		records.Peers, records.Transport = o.replica.Brokers(), o.replica.Transport()
		o.replica.server.Handle(eventtrace.Element, records.Handler())
		tails.Owners, tails.Partitions, tails.Transport = shared.owners, shared.streams.Partitions, o.replica.Transport()
		o.replica.server.Handle(eventtail.Element, tails.Handler())
	}
	return m, nil
}

func (o *eventingOptions) newBroker(ctx context.Context, log *eventlog.Log, known *knownObjects, health *healthChanges, at *addresses, deliverer *sender.Sender, traces *trace.Store, tails *tail.Hub, store *deadletterstore.Store, archives *archive.Store) *broker.Broker {
	options := broker.Options{
		Log:           logqueue.JetStream(log),
		Send:          deliverer.Send,
		Tokens:        o.tokens,
		Exists:        known.exists,
		Existing:      known.list,
		Addresses:     at.urls,
		Clock:         clock.RealClock{},
		Budget:        o.budget,
		HealthChanged: health.Changed,
		Trace:         traces,
		Tails:         tails,
		Archive:       archives,
	}
	if store != nil {
		options.DeadLetters = store
	}
	own := broker.New(klog.NewContext(ctx, klog.FromContext(ctx).WithName("broker")), options)
	o.registry.CustomMustRegister(own)
	return own
}

// openTraces opens the records of events. It returns nil if nothing is recorded.
func (o *eventingOptions) openTraces(ctx context.Context) *trace.Store {
	if o.TraceRetention == 0 || o.dataDir == "" {
		return nil
	}
	traces, err := trace.Open(trace.Options{
		Dir: traceDir(o.dataDir), Retention: o.TraceRetention, MaxBytes: o.TraceMaxBytes, Clock: clock.RealClock{}, Logger: klog.FromContext(ctx).WithName("traces"),
	})
	if err != nil {
		// For example, a replica with an external event log has no writable directory. Events are accepted without records.
		klog.FromContext(ctx).Error(err, "Failed to open trace records; recording none")
		return nil
	}
	o.registry.CustomMustRegister(traces)
	return traces
}

// newTraces returns what answers requests for the records of events.
func (o *eventingOptions) newTraces(records *eventtrace.Replicas, plane dataPlane, own *broker.Broker) *eventtrace.Traces {
	brokers, channels := o.clients.informers.Eventing().V1().Brokers().Lister(), o.clients.informers.Messaging().V1().Channels().Lister()
	return &eventtrace.Traces{
		Source: records, Consumers: plane.Consumers, StreamAt: own.StreamAt,
		UID: func(stream eventing.Key) (types.UID, bool) {
			var object metav1.Object
			var err error
			if stream.Kind == eventing.Broker {
				object, err = brokers.Brokers(stream.Namespace).Get(stream.Name)
			} else {
				object, err = channels.Channels(stream.Namespace).Get(stream.Name)
			}
			if err != nil {
				return "", false
			}
			return origin.UID(object.GetUID()), true
		},
	}
}

// trustBundles returns a function that makes a sender trust the trust bundles until ctx is canceled, and returns once it does.
func (o *eventingOptions) trustBundles(deliverer *sender.Sender) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		logger := klog.FromContext(ctx).WithName("trust-bundles")
		return certs.WatchTrustBundles(ctx, certs.TrustBundleOptions{
			Client: o.core, Namespace: o.faults.namespace, Report: o.faults.TrustBundle, Logger: logger,
			Changed: func(bundle []byte) {
				if err := deliverer.Trust(bundle); err != nil {
					logger.Error(err, "Failed to trust certificates; keeping the last ones")
				}
			},
		})
	}
}

// authenticated reports whether senders of events need tokens.
func (o *eventingOptions) authenticated() bool { return o.settings.Get().Senders.OIDC }

// eventingControllers are the controllers of the kinds of Eventing.
type eventingControllers struct {
	policies, brokers, triggers, channels, subscriptions, runs *reconciler.Controller
}

func (o *eventingOptions) newControllers(plane dataPlane, resolver *destination.Resolver, table *senders.Table, hosts *eventing.ChannelHosts, recorder record.EventRecorder, at *addresses, archives *archive.Store) (c eventingControllers, err error) {
	client, now := o.clients.versioned, clock.RealClock{}
	eventingKinds, messagingKinds := o.clients.informers.Eventing().V1(), o.clients.informers.Messaging().V1()
	policies := authorization.Source{
		Informer: o.clients.informers.Eventing().V1alpha1().EventPolicies(),
		Settings: func() authorization.Settings {
			senders := o.settings.Get().Senders
			return authorization.Settings{Authenticated: senders.OIDC, Default: eventing.AuthorizationMode(senders.DefaultMode)}
		},
	}
	c.policies, err = (&eventpolicy.Reconciler{
		Client: client.EventingV1alpha1(), Authenticated: o.authenticated, Recorder: recorder, Clock: now,
	}).Controller(o.clients.informers.Eventing().V1alpha1(), resolver)
	if err != nil {
		return c, err
	}
	c.brokers, err = (&brokercontroller.Reconciler{
		Client: client.EventingV1(), Streams: table, Addresses: at.of, Archiving: o.archiving(archives), Recorder: recorder, Clock: now,
	}).Controller(eventingKinds, policies, resolver)
	if err != nil {
		return c, err
	}
	o.accounts.Enabled = o.authenticated
	links := func() bool { return o.settings.Eventing().Links }
	triggers := &trigger.Reconciler{Client: client.EventingV1(), Consumers: plane, Links: links, Recorder: recorder, Clock: now}
	c.triggers, err = triggers.Controller(eventingKinds, o.accounts, resolver)
	if err != nil {
		return c, err
	}
	c.channels, err = (&channel.Reconciler{
		Client: client.MessagingV1(), Streams: hosts, Addresses: at.of, Services: o.channelServices, Host: o.host,
		Recorder: recorder, Clock: now,
	}).Controller(messagingKinds, policies, resolver)
	if err != nil {
		return c, err
	}
	subscriptions := &subscription.Reconciler{
		Client: client.MessagingV1(), Consumers: plane, Links: links, Host: o.host, Recorder: recorder, Clock: now,
	}
	c.subscriptions, err = subscriptions.Controller(messagingKinds, o.accounts, resolver)
	if err != nil {
		return c, err
	}
	authenticated := o.authenticated()
	o.settings.Subscribe(func() {
		c.policies.RequeueAll()
		c.brokers.RequeueAll()
		c.channels.RequeueAll()
		if now := o.authenticated(); now != authenticated {
			authenticated = now
			c.triggers.RequeueAll()
			c.subscriptions.RequeueAll()
			return
		}
		triggers.EnqueueLinked(c.triggers)
		subscriptions.EnqueueLinked(c.subscriptions)
	})
	return c, nil
}

// followAddresses makes the controllers write the addresses again when the setting or the authority changes, and reports a setting that cannot be met.
func (c *eventingControllers) followAddresses(o eventingOptions, at *addresses) {
	requeue := func() {
		c.brokers.RequeueAll()
		c.channels.RequeueAll()
	}
	if o.secure != nil {
		o.secure.subscribe(requeue)
	}
	known := settings.TransportDisabled
	follow := func() {
		now := at.encryption()
		if now == known {
			return
		}
		known = now
		o.faults.HTTPSNotServed(servingv1.FeaturesConfigMapName, at.unserved())
		requeue()
	}
	follow()
	o.settings.Subscribe(follow)
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

// existsNow is exists for the object of a log, which may be too new for the informers.
func (k *knownObjects) existsNow(ctx context.Context, log string) (bool, error) {
	uid := broker.UIDOf(log)
	if k.exists(uid) || k.list == nil {
		return k.exists(uid), nil
	}
	all, err := k.list(ctx)
	return all.Has(uid), err
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
	// traces are the records of events; nil if nothing is recorded.
	traces *trace.Store
	// deadLetters is the dead letter store; nil without one.
	deadLetters *deadletterstore.Store
	// archives are the archives of Brokers; nil if they are disabled.
	archives *archive.Store
	// runs deliver dead letters and archived events again; nil without both.
	runs *eventrun.Runs
	// tails show events live.
	tails    *tail.Hub
	listener net.Listener
	// tls accepts events over TLS with the certificate of secure. Nil disables it.
	tls    net.Listener
	secure *secureIngress
	// trust makes deliveries trust the trust bundles until ctx is canceled, and returns once they do.
	trust func(ctx context.Context) error
}

// Name implements lifecycle.Module.
func (*brokerModule) Name() string { return "broker" }

// Start implements lifecycle.Module.
func (m *brokerModule) Start(ctx context.Context, fail func(error)) error {
	m.Begin(ctx, fail)
	if err := m.Init(ctx, func(ctx context.Context) error {
		if err := m.trust(ctx); err != nil {
			return err
		}
		return m.dataPlane.Start(ctx)
	}); err != nil {
		m.traces.Close()
		return errors.Join(err, m.log.Close())
	}
	if m.deadLetters != nil {
		m.Go(func(ctx context.Context) error {
			m.deadLetters.Run(ctx)
			return nil
		})
	}
	if m.archives != nil {
		m.Go(func(ctx context.Context) error {
			m.archives.Run(ctx)
			return nil
		})
	}
	m.Go(func(ctx context.Context) error { return m.ingress.Serve(ctx, m.listener, stopTimeout) })
	if m.tls != nil {
		m.Go(func(ctx context.Context) error { return m.ingress.ServeTLS(ctx, m.tls, m.secure.tls(), stopTimeout) })
	}
	return nil
}

// Retire closes each client connection after its next response, so that clients use other replicas, and ends the tails.
func (m *brokerModule) Retire() {
	m.ingress.Retire()
	m.tails.Stop()
}

// Stop stops accepting events, then delivering them, and closes the event log.
func (m *brokerModule) Stop(ctx context.Context) error {
	m.tails.Stop()
	if m.runs != nil {
		m.runs.Close()
	}
	err := m.Tasks.Stop(ctx)
	m.dataPlane.Stop(stopTimeout)
	m.ingress.Close()
	m.traces.Close()
	return errors.Join(err, m.log.Close())
}
