package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"time"

	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
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

// channelPath begins the paths of Channels, which tells them from Brokers of the same name.
const channelPath = "channels"

// catchUpTimeout is how long a replica that starts waits for its event log to have what others wrote meanwhile.
const catchUpTimeout = 30 * time.Second

// eventingPart is Knative Eventing: controllers, broker and event log.
type eventingPart struct {
	dataPlane dataPlane
	ingress   *ingress.Handler
	log       *eventlog.Log
	// streams are the controllers of what accepts events, consumers those of what gets them, which need the former.
	streams, consumers []*reconciler.Controller
	stopTimeout        time.Duration
	// shared tells that other replicas take the events which this one does not.
	shared bool
}

// dataPlane is what serves streams and consumers: a broker, or that of each of several replicas for some of them.
type dataPlane interface {
	eventing.Streams
	eventing.Consumers
	Accept(ctx context.Context, stream eventing.Key, events []*event.Event) error
	Exists(stream eventing.Key) bool
	Start(ctx context.Context) error
	Stop(timeout time.Duration)
}

// eventingOptions are what Eventing stands on.
type eventingOptions struct {
	clients *clients
	// clusterDomain is the DNS domain of the cluster.
	clusterDomain string
	log           eventlog.Options
	// address is where a stream accepts events.
	address func(eventing.Key) duckv1.Addressable
	// host has the kinds of the cluster that are referred to; nil where there is none.
	host *destination.Host
	// channelServices are the core Services of Channels; nil without a host cluster.
	channelServices channel.Services
	// allowCrossNamespace and network are options of the Resolver.
	allowCrossNamespace bool
	network             destination.Network
	// replica is this server among others; nil if there are none.
	replica *Replica
	maxBody int64
	// budget bounds the memory of events and deliveries.
	budget  *flow.Budget
	tracing trace.TracerProvider
	// guard decides which addresses events may be sent to.
	guard *egress.Guard
	// discloses reports whether the users of a namespace may see what a host answers.
	discloses sender.Disclosure
	// stopTimeout is how long deliveries may go on at the end.
	stopTimeout time.Duration
}

// EventLogDir is where the embedded event log is within the directory of the server's data.
func EventLogDir(dataDir string) string { return filepath.Join(dataDir, "events") }

func newEventing(ctx context.Context, o eventingOptions) (_ *eventingPart, err error) {
	p := &eventingPart{stopTimeout: o.stopTimeout, shared: o.replica != nil}
	o.log.Logger, o.log.Register = klog.FromContext(ctx), legacyregistry.MustRegister
	if p.log, err = eventlog.Open(ctx, o.log); err != nil {
		return nil, fmt.Errorf("opening the event log: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.log.Close())
		}
	}()
	deliverer := sender.New(sender.Options{
		TracerProvider: o.tracing, Dial: o.guard.Dialer(egress.ForEvents, sender.DialTimeout), Discloses: o.discloses,
	})
	var triggers, subscriptions *reconciler.Controller
	informers := o.clients.informers
	eventingKinds, messagingKinds := informers.Eventing().V1(), informers.Messaging().V1()
	exists, err := existing(eventingKinds.Brokers().Informer(), eventingKinds.Triggers().Informer(),
		messagingKinds.Channels().Informer(), messagingKinds.Subscriptions().Informer())
	if err != nil {
		return nil, err
	}
	own := broker.New(klog.NewContext(ctx, klog.FromContext(ctx).WithName("broker")), broker.Options{
		Log:      logqueue.JetStream(p.log),
		Send:     deliverer.Send,
		Exists:   exists,
		Existing: o.existing(),
		Address:  func(key eventing.Key) string { return o.address(key).URL },
		Clock:    clock.RealClock{},
		Budget:   o.budget,
		HealthChanged: func(key eventing.Key) {
			name := types.NamespacedName{Namespace: key.Namespace, Name: key.Name}
			if key.Kind == eventing.Trigger {
				triggers.Enqueue(name)
			} else {
				subscriptions.Enqueue(name)
			}
		},
	})
	legacyregistry.CustomMustRegister(own)
	listed := o.existing()
	p.log.SetRestoreHooks(eventlog.RestoreHooks{
		Exists: func(ctx context.Context, id string) (bool, error) {
			if exists(types.UID(id)) || listed == nil {
				return exists(types.UID(id)), nil
			}
			// The object may be too new for the informers.
			all, err := listed(ctx)
			return all.Has(types.UID(id)), err
		},
		Restored: func(id string) {
			if err := own.Restored(ctx, types.UID(id)); err != nil {
				klog.FromContext(ctx).Error(err, "Failed to look for restored events; they are delivered after the next ones")
			}
		},
	})
	p.dataPlane = own
	accepting := ingress.Options{MaxBody: o.maxBody, Budget: o.budget, TracerProvider: o.tracing, Register: legacyregistry.MustRegister}
	recorder := o.clients.recorder
	var shared *sharedEventing
	if o.replica != nil {
		shared = newSharedEventing(ctx, own, o)
		p.dataPlane = shared.streams
		accepting.Peers = &ingress.Forwarder{Owners: shared.owners, Transport: o.replica.Transport(), Exists: shared.streams.Exists}
		recorder = leader.Recorder(recorder, shared.ownsObject)
	}
	hosts := &eventing.ChannelHosts{Streams: p.dataPlane}
	accepting.Accept, accepting.Exists, accepting.Find = p.dataPlane.Accept, p.dataPlane.Exists, hosts.Find
	p.ingress = ingress.New(accepting)

	now, client := clock.RealClock{}, o.clients.versioned
	resolver := destination.New(ctx, destination.Options{
		Informers: informers, Host: o.host, ClusterDomain: o.clusterDomain,
		AllowCrossNamespace: o.allowCrossNamespace, Network: o.network,
	})
	brokers, err := (&brokercontroller.Reconciler{
		Client: client.EventingV1(), Streams: p.dataPlane, Address: o.address, Recorder: recorder, Clock: now,
	}).Controller(eventingKinds, resolver)
	if err != nil {
		return nil, err
	}
	triggers, err = (&trigger.Reconciler{
		Client: client.EventingV1(), Consumers: p.dataPlane, Recorder: recorder, Clock: now,
	}).Controller(eventingKinds, resolver)
	if err != nil {
		return nil, err
	}
	channels, err := (&channel.Reconciler{
		Client: client.MessagingV1(), Streams: hosts, Address: o.address, Services: o.channelServices, Host: o.host,
		Recorder: recorder, Clock: now,
	}).Controller(messagingKinds, resolver)
	if err != nil {
		return nil, err
	}
	subscriptions, err = (&subscription.Reconciler{
		Client: client.MessagingV1(), Consumers: p.dataPlane, Host: o.host, Recorder: recorder, Clock: now,
	}).Controller(messagingKinds, resolver)
	if err != nil {
		return nil, err
	}
	p.streams = []*reconciler.Controller{brokers, channels}
	p.consumers = []*reconciler.Controller{triggers, subscriptions}
	if shared != nil {
		shared.lead(brokers, triggers, channels, subscriptions)
		shared.serve(o.replica, p.ingress)
	}
	return p, nil
}

// addressOf is where a stream accepts events at one host and port for all.
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

// existing returns a function that reports whether one of the informers has an object of an original UID.
func existing(informers ...cache.SharedIndexInformer) (func(types.UID) bool, error) {
	for _, informer := range informers {
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
	return func(uid types.UID) bool {
		for _, informer := range informers {
			if found, err := informer.GetIndexer().ByIndex(byUID, string(uid)); err != nil || len(found) > 0 {
				return true
			}
		}
		return false
	}, nil
}

// prepare starts the controllers, and returns once all streams and consumers that there are are known.
func (p *eventingPart) prepare(ctx context.Context, run func(func(context.Context))) error {
	for _, stage := range [][]*reconciler.Controller{p.streams, p.consumers} {
		for _, c := range stage {
			run(func(ctx context.Context) { c.Run(ctx, workers) })
		}
		if err := primed(ctx, stage...); err != nil {
			return err
		}
	}
	if p.shared {
		p.catchUp(ctx)
	}
	return ctx.Err()
}

// catchUp waits until the log of this replica has what it should have. Others would leave events to one that cannot take
// them yet. It gives up after a while: nobody else may be there, or the log may be full.
func (p *eventingPart) catchUp(ctx context.Context) {
	waiting, cancel := context.WithTimeout(ctx, catchUpTimeout)
	defer cancel()
	var last error
	err := wait.PollUntilContextCancel(waiting, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		last = p.log.Health(ctx)
		return last == nil, nil
	})
	if err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Info("Going on with an event log that is not whole", "reason", last)
	}
}

// parts returns the parts that these are, without anything between.
func (p *eventingPart) parts(listener net.Listener) []part {
	return []part{
		{prepare: p.prepare},
		{p.begin, func(ctx context.Context) error { return p.serve(ctx, listener) }},
	}
}

// begin begins to deliver events. It comes after prepare.
func (p *eventingPart) begin(ctx context.Context, _ func(func(context.Context))) error {
	return p.dataPlane.Start(ctx)
}

// serve takes events until ctx ends and those under way are settled.
func (p *eventingPart) serve(ctx context.Context, listener net.Listener) error {
	err := p.ingress.Serve(ctx, listener, p.stopTimeout)
	p.dataPlane.Stop(p.stopTimeout)
	p.ingress.Close()
	return errors.Join(err, p.log.Close())
}
