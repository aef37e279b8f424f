package app

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
)

// Replicas find each other by names under the domain of the cluster.
func TestHostNames(t *testing.T) {
	m := &members{
		MembersConfig: MembersConfig{StatefulSet: "server", Replicas: 3, Service: "knative-apiserver-peers", EventLogPort: 6222},
		podName:       "server-2", podIP: "192.0.2.7", namespace: "kn", clusterDomain: "corp.example",
	}
	got := m.hostNames()
	want := []string{
		"server-0.knative-apiserver-peers.kn.svc.corp.example",
		"server-1.knative-apiserver-peers.kn.svc.corp.example",
		"server-2.knative-apiserver-peers.kn.svc.corp.example",
	}
	if !slices.Equal(got, want) {
		t.Errorf("hostNames returns %v, want %v", got, want)
	}

	log := eventlog.Options{Replicas: 1}
	m.joinEventLog(&log, nil)
	cluster := &eventlog.Cluster{
		Name: "server-2", ListenHost: "192.0.2.7", ListenPort: 6222, Advertise: want[2] + ":6222",
		Routes: []string{want[0] + ":6222", want[1] + ":6222", want[2] + ":6222"},
	}
	if diff := cmp.Diff(cluster, log.Cluster); diff != "" || log.Replicas != 3 {
		t.Errorf("each event is stored %d times, the member (-want +got):\n%s", log.Replicas, diff)
	}
}
