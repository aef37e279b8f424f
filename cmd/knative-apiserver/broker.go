package main

import (
	"errors"
	"fmt"
	"math"
	"net"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/knative-apiserver/knative-apiserver/pkg/app"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/archive"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/deadletter"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/trace"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
)

// brokerOptions are the flags of Eventing.
type brokerOptions struct {
	port, tlsPort int
	maxEventSize  quantity
	log           eventlog.Options
	maxBytes      quantity
	maxStream     quantity
	traceFor      time.Duration
	traceBytes    quantity
	deadFor       time.Duration
	deadBytes     quantity
	archiveFor    time.Duration
	archiveBytes  quantity
}

func newBrokerOptions() brokerOptions {
	return brokerOptions{port: defaultBrokerPort, tlsPort: defaultBrokerTLSPort, maxEventSize: 1 << 20, log: eventlog.Options{Replicas: 1},
		traceFor: trace.DefaultRetention, traceBytes: trace.DefaultMaxBytes,
		deadFor: deadletter.DefaultRetention, deadBytes: deadletter.DefaultMaxBytes,
		archiveFor: archive.DefaultMaxRetention, archiveBytes: archive.DefaultMaxBytes}
}

func (o *brokerOptions) addFlags(flags *pflag.FlagSet, port, tlsPort string) {
	flags.IntVar(&o.port, "broker-port", o.port, port)
	flags.IntVar(&o.tlsPort, "broker-tls-port", o.tlsPort, tlsPort)
	flags.Var(&o.maxEventSize, "max-event-size", "Maximum size of the body of an event request, in bytes, such as 1Mi.")
	flags.Var(&o.maxBytes, "event-log-max-size", "Maximum disk space of all undelivered events, in bytes, such as 10Gi. 0 allows the space of the disk.")
	flags.Var(&o.maxStream, "event-log-max-stream-size",
		"Maximum disk space of the undelivered events of one Broker or Channel, in bytes, such as 1Gi. 0 allows a quarter of the space of all.")
	flags.DurationVar(&o.traceFor, "trace-retention", o.traceFor,
		"Time for which the subresource trace of Brokers and Channels knows what happened to an event, at least 1m. 0 records nothing.")
	flags.Var(&o.traceBytes, "trace-max-size", "Maximum disk space of the records for the subresource trace, in bytes, such as 1Gi, at least 1Mi. "+
		"The oldest records of the namespace with most of them are deleted first.")
	flags.DurationVar(&o.deadFor, "dead-letter-retention", o.deadFor,
		"Time for which the dead letter store keeps events that could not be delivered and have no dead letter sink, at least 1m. 0 drops such events.")
	flags.Var(&o.deadBytes, "dead-letter-max-size", "Maximum disk space of the dead letters of one namespace in the dead letter store, in bytes, such as 1Gi, at least 1Mi. "+
		"The oldest are deleted first. All dead letters have at most an eighth of --event-log-max-size, or of the disk, in addition to it.")
	flags.DurationVar(&o.archiveFor, "archive-max-retention", o.archiveFor,
		"Maximum time for which the archive of a Broker keeps accepted events, if archive-retention in the ConfigMap of its spec.config enables it, at least 1m. 0 disables archives.")
	flags.Var(&o.archiveBytes, "archive-max-size", "Maximum disk space of the archives of the Brokers of one namespace, in bytes, such as 1Gi, at least 1Mi. "+
		"The oldest events are deleted first. All archives have at most a quarter of --event-log-max-size, or of the disk, in addition to it.")
	flags.StringVar(&o.log.URL, "nats-url", "",
		"URLs of the servers of a NATS cluster with JetStream that stores the events, separated by commas. Empty stores them in the data directory.")
	flags.StringVar(&o.log.CredentialsFile, "nats-credentials", "", "Path of the credentials for --nats-url. Empty sends none.")
	flags.StringVar(&o.log.CAFile, "nats-ca-file", "", "Path of the CA certificates that verify --nats-url. Empty uses the CA certificates of the system.")
	flags.StringVar(&o.log.CertFile, "nats-cert-file", "", "Path of the client certificate for --nats-url. Empty sends none.")
	flags.StringVar(&o.log.KeyFile, "nats-key-file", "", "Path of the private key of --nats-cert-file.")
	flags.IntVar(&o.log.Replicas, "nats-replicas", o.log.Replicas, "Number of servers of --nats-url that store each event, from 1 to 5.")
}

// addMemoryFlag registers the flag of the memory budget, which gateway and broker share.
func addMemoryFlag(flags *pflag.FlagSet, memory *quantity) {
	flags.Var(memory, "memory-budget", "Maximum memory that requests, events and deliveries hold, in bytes, such as 512Mi, shared fairly by namespaces. "+
		"0 selects a quarter of the memory limit of the process, at most 512Mi.")
}

// addFastPathFlag adds the flag that turns the fast path of the gateway off.
func addFastPathFlag(fs *pflag.FlagSet, enabled *bool) {
	fs.BoolVar(enabled, "http1-fast-path", *enabled,
		"If true, the gateway forwards plain HTTP/1.1 requests with its own forwarder. If false, Go's net/http forwards all requests, at a higher CPU cost per request.")
}

// addHTTP3Flag adds the flag of HTTP/3.
func addHTTP3Flag(fs *pflag.FlagSet, enabled *bool) {
	fs.BoolVar(enabled, "gateway-http3", *enabled,
		"If true, the gateway also accepts HTTP/3 at the UDP port with the number of --gateway-tls-port, and advertises it to clients of HTTPS by Alt-Svc.")
}

// validateHTTP3 checks that HTTP/3 has a port.
func validateHTTP3(enabled bool, tlsPort int) error {
	if enabled && tlsPort < 0 {
		return errors.New("--gateway-http3 requires --gateway-tls-port of at least 0")
	}
	return nil
}

func (o *brokerOptions) validate() error {
	errs := []error{validatePort("broker-port", o.port, 0), validatePort("broker-tls-port", o.tlsPort, -1)}
	if o.maxEventSize < 1 || o.maxEventSize > math.MaxInt32 {
		errs = append(errs, fmt.Errorf("--max-event-size %s must be from 1 to 2147483647 bytes", o.maxEventSize.String()))
	}
	if o.traceFor != 0 && o.traceFor < time.Minute {
		errs = append(errs, fmt.Errorf("--trace-retention %s must be 0 or at least 1m", o.traceFor))
	}
	if o.traceBytes < 1<<20 {
		errs = append(errs, fmt.Errorf("--trace-max-size %s must be at least 1Mi", o.traceBytes.String()))
	}
	if o.deadFor != 0 && o.deadFor < time.Minute {
		errs = append(errs, fmt.Errorf("--dead-letter-retention %s must be 0 or at least 1m", o.deadFor))
	}
	if o.deadBytes < 1<<20 {
		errs = append(errs, fmt.Errorf("--dead-letter-max-size %s must be at least 1Mi", o.deadBytes.String()))
	}
	if o.archiveFor != 0 && o.archiveFor < time.Minute {
		errs = append(errs, fmt.Errorf("--archive-max-retention %s must be 0 or at least 1m", o.archiveFor))
	}
	if o.archiveBytes < 1<<20 {
		errs = append(errs, fmt.Errorf("--archive-max-size %s must be at least 1Mi", o.archiveBytes.String()))
	}
	if o.log.Replicas < 1 || o.log.Replicas > 5 {
		errs = append(errs, fmt.Errorf("--nats-replicas %d must be from 1 to 5", o.log.Replicas))
	}
	if o.log.URL == "" && o.log.Replicas > 1 {
		errs = append(errs, errors.New("--nats-replicas must be 1 without --nats-url: the embedded event log is one server"))
	}
	if (o.log.CertFile == "") != (o.log.KeyFile == "") {
		errs = append(errs, errors.New("--nats-cert-file and --nats-key-file must be set together"))
	}
	return errors.Join(errs...)
}

// config returns the configuration of Eventing with its listeners; tls may be nil.
func (o *brokerOptions) config(listener, tls net.Listener) *app.EventingConfig {
	log := o.log
	log.MaxBytes, log.MaxStreamBytes = int64(o.maxBytes), int64(o.maxStream)
	return &app.EventingConfig{
		Listener: listener, TLS: tls, Log: log, MaxEventBytes: int64(o.maxEventSize),
		TraceRetention: o.traceFor, TraceMaxBytes: int64(o.traceBytes),
		DeadLetterRetention: o.deadFor, DeadLetterMaxBytes: int64(o.deadBytes),
		ArchiveMaxRetention: o.archiveFor, ArchiveMaxBytes: int64(o.archiveBytes),
	}
}

// quantity is a number of bytes. It implements pflag.Value.
type quantity int64

// Set implements pflag.Value.
func (q *quantity) Set(value string) error {
	parsed, err := resource.ParseQuantity(value)
	if err != nil || parsed.Sign() < 0 {
		return errors.New("must be a number of bytes of at least 0, such as 1048576, 512Ki or 10Gi")
	}
	*q = quantity(parsed.Value())
	return nil
}

// String implements pflag.Value.
func (q *quantity) String() string {
	return resource.NewQuantity(int64(*q), resource.BinarySI).String()
}

// Type implements pflag.Value.
func (q *quantity) Type() string { return "bytes" }
