// Package eventing tests Eventing with a host cluster: a real kube-apiserver and the aggregated server with its controllers and
// broker, registered by the shipped manifests and with the rights of the shipped RBAC only.
package eventing

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
	"github.com/knative-apiserver/knative-apiserver/test/port"
)

var (
	// host is the installation that all tests share.
	host *harness.Installation
	// brokerURL is the URL of the event ingress.
	brokerURL string
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) (code int) {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	dir, err := os.MkdirTemp("", "knative-aggregated-eventing-")
	if err != nil {
		return fail(err)
	}
	cluster, err := harness.StartCluster(dir)
	if err != nil {
		return fail(err)
	}
	defer func() {
		if err := cluster.Stop(); err != nil {
			code = fail(err)
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), long)
	defer cancel()
	if err := defineKinds(ctx, cluster); err != nil {
		return fail(err)
	}
	number, err := port.Stable()
	if err != nil {
		return fail(err)
	}
	brokerURL = "http://" + net.JoinHostPort(cluster.Address, strconv.Itoa(number))
	host, err = harness.Install(cluster, dir+"/server", "apiserver,controllers,broker", "--broker-port="+strconv.Itoa(number))
	if err != nil {
		return fail(err)
	}
	code = m.Run()
	if err := host.Server.Stop(); err != nil {
		return fail(fmt.Errorf("%w\n%s", err, host.Logs()))
	}
	if lines := refusals(host.Logs()); len(lines) > 0 {
		return fail(fmt.Errorf("the host refused the server something: the shipped RBAC lacks a rule:\n%s", strings.Join(lines, "\n")))
	}
	return code
}

// refusals returns the lines of the server's log about its own requests that the host rejected, except the ones that tests
// provoke.
func refusals(log string) (lines []string) {
	for line := range strings.Lines(log) {
		if strings.Contains(line, "forbidden") && strings.Contains(line, "system:serviceaccount:knative-system:knative-apiserver") &&
			!strings.Contains(line, refusedGroup) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}
