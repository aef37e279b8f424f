package main

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/knative-apiserver/knative-apiserver/pkg/app"
)

// parseAggregated returns the options and flags of a command line.
func parseAggregated(t *testing.T, args ...string) (*aggregatedOptions, *pflag.FlagSet) {
	t.Helper()
	options, sections := newAggregatedOptions(), newSections()
	options.addFlags(&sections)
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	for _, section := range sections.FlagSets {
		flags.AddFlagSet(section)
	}
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return options, flags
}

// Invalid flags are rejected before the server starts.
func TestAggregatedFlags(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		// want is part of the error; empty if the flags are valid.
		want string
	}{
		"all":                   {},
		"Eventing":              {args: []string{"--components=apiserver,controllers,broker"}},
		"gateway alone":         {args: []string{"--components=gateway"}},
		"gateway that reads":    {args: []string{"--components=gateway", "--gateway-certificate-dir=/certs", "--pod-name=gateway-1", "--pod-ip=192.0.2.1", "--pod-uid=u"}},
		"gateway without a Pod": {[]string{"--components=gateway", "--gateway-certificate-dir=/certs", "--pod-uid=u"}, "--gateway-certificate-dir requires --pod-name"},
		"gateway without a UID": {[]string{"--components=gateway", "--gateway-certificate-dir=/certs", "--pod-name=gateway-1", "--pod-ip=192.0.2.1"},
			"--gateway-certificate-dir requires --components=gateway and --pod-uid"},
		"certificate of gateways for all": {[]string{"--gateway-certificate-dir=/certs", "--pod-name=server-0", "--pod-ip=192.0.2.1", "--pod-uid=u"},
			"--gateway-certificate-dir requires --components=gateway and --pod-uid"},
		"two certificates": {[]string{"--components=gateway", "--gateway-certificate-dir=/certs", "--self-managed-certificates", "--pod-name=gateway-1", "--pod-ip=192.0.2.1", "--pod-uid=u"},
			"--gateway-certificate-dir and --self-managed-certificates exclude each other"},
		"no component":          {[]string{"--components="}, "--components must name some of apiserver, controllers, gateway, broker"},
		"replicas of what":      {[]string{"--replicas=3"}, "--replicas must be 1 without --pod-name"},
		"even number":           {[]string{"--replicas=2", "--pod-name=server-0", "--pod-ip=192.0.2.1"}, "--replicas 2 must be 1, 3 or 5"},
		"no address":            {[]string{"--replicas=3", "--pod-name=server-0"}, `--pod-ip "" must be an IP address`},
		"no ordinal":            {[]string{"--replicas=3", "--pod-name=server", "--pod-ip=192.0.2.1"}, `--pod-name "server" must be the name of a Pod of a StatefulSet`},
		"three replicas":        {args: []string{"--replicas=3", "--pod-name=server-2", "--pod-ip=192.0.2.1"}},
		"no port":               {[]string{"--gateway-internal-port=70000"}, "--gateway-internal-port 70000 must be from 0 to 65535"},
		"unknown component":     {[]string{"--components=apiserver,scheduler"}, `--components "scheduler" must be among`},
		"a port of its own":     {[]string{"--broker-port=70000"}, "--broker-port 70000 must be from 0 to 65535"},
		"no namespace":          {[]string{"--system-namespace=Not_One"}, `--system-namespace "Not_One"`},
		"PROXY protocol":        {args: []string{"--proxy-protocol", "--trusted-proxies=10.0.0.0/8"}},
		"PROXY of whom":         {[]string{"--proxy-protocol"}, "--proxy-protocol requires --trusted-proxies"},
		"no domain":             {[]string{"--cluster-domain=.local"}, `--cluster-domain ".local"`},
		"no storage for events": {[]string{"--components=apiserver,controllers,broker", "--etcd-servers=http://127.0.0.1:2379", "--data-dir="}, "one of --nats-url and --data-dir must be set to store events"},
		"events in NATS":        {args: []string{"--components=apiserver,controllers,broker", "--etcd-servers=http://127.0.0.1:2379", "--data-dir=", "--nats-url=nats://127.0.0.1"}},
	} {
		t.Run(name, func(t *testing.T) {
			options, _ := parseAggregated(t, test.args...)
			err := options.complete().validate()
			if test.want == "" && err != nil {
				t.Errorf("validate returns %v", err)
			}
			if test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("validate returns %v, want %q", err, test.want)
			}
		})
	}
}

// The flags of a replica describe its Pod, its StatefulSet and the groups that it is in.
func TestReplicaConfig(t *testing.T) {
	args := []string{"--replicas=3", "--pod-name=server-2", "--pod-uid=u", "--pod-ip=192.0.2.7", "--components=apiserver,broker", "--certificate-settle-duration=1m"}
	options, _ := parseAggregated(t, args...)
	want := &app.ReplicaConfig{
		PodName: "server-2", PodUID: "u", PodIP: "192.0.2.7", Group: "apiserver.broker",
		Members: app.MembersConfig{StatefulSet: "server", Replicas: 3, Service: "knative-apiserver-peers", EtcdPeerPort: 2380, EtcdClientPort: 2379, EventLogPort: 6222},
	}
	if diff := cmp.Diff(want, options.replica.replica(options.components, nil)); diff != "" {
		t.Errorf("replica (-want +got):\n%s", diff)
	}
	certificates := &app.CertificatesConfig{PodIP: "192.0.2.7", PodName: "server-2", PeerService: "knative-apiserver-peers", Settle: time.Minute}
	if diff := cmp.Diff(certificates, options.replica.certificates()); diff != "" {
		t.Errorf("certificates (-want +got):\n%s", diff)
	}

	options, _ = parseAggregated(t, "--components=gateway", "--gateway-certificate-dir=/certs", "--pod-name=gateway-1", "--pod-ip=192.0.2.1", "--pod-uid=u")
	if replica := options.replica.replica(options.components, nil); !replica.ReadOnly || replica.Leads || replica.Group != "gateway" {
		t.Errorf("a gateway with a mounted certificate: %+v", replica)
	}
	if diff := cmp.Diff(&app.CertificatesConfig{Serving: true, Dir: "/certs"}, options.replica.certificates()); diff != "" {
		t.Errorf("certificates of a gateway (-want +got):\n%s", diff)
	}

	options, _ = parseAggregated(t, "--self-managed-certificates")
	if replica, certificates := options.replica.replica(options.components, nil), options.replica.certificates(); replica != nil || certificates == nil || !certificates.Serving {
		t.Errorf("without peers: replica %+v, certificates %+v", replica, certificates)
	}
	options, _ = parseAggregated(t)
	if certificates := options.replica.certificates(); certificates != nil {
		t.Errorf("with the certificates of flags: %+v", certificates)
	}
}

// validate returns the same errors each time, all at once, and changes no option.
func TestValidateIsPure(t *testing.T) {
	args := []string{"--components=gateway", "--node-ips=one,192.0.2.1", "--replicas=2", "--gateway-port=-1", "--gateway-tls-port=-2", "--drain-port=70000", "--gateway-http3", "--certificate-settle-duration=0s"}
	options, flags := parseAggregated(t, args...)
	values := func() map[string]string {
		values := map[string]string{}
		flags.VisitAll(func(f *pflag.Flag) { values[f.Name] = f.Value.String() })
		return values
	}
	before := values()
	completed := options.complete()
	first, second := completed.validate(), completed.validate()
	if first == nil || second == nil || first.Error() != second.Error() {
		t.Errorf("validate returns %v, then %v", first, second)
	}
	for _, want := range []string{"--node-ips", "--replicas", "--gateway-port", "--gateway-tls-port", "--drain-port", "--gateway-http3", "--certificate-settle-duration"} {
		if !strings.Contains(first.Error(), want) {
			t.Errorf("validate returns %v, want an error of %s too", first, want)
		}
	}
	if after := values(); !maps.Equal(before, after) {
		t.Errorf("flags are %v, want %v", after, before)
	}
	if options.api.Recommended.Etcd == nil || options.api.NoAPI {
		t.Error("the options of the API server changed")
	}
}
