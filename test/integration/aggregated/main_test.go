// Package aggregated tests the server behind a real kube-aggregator, registered by the shipped manifests and with only the
// permissions of the shipped RBAC. Points such as P7 are the numbered requirements of docs/aggregation.md.
//
// Tests that stop or restart the server, or change its registration, run one by one; all others call t.Parallel, and so run
// after them.
package aggregated

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// controllersUser may create Revisions here, by --controllers-user, in place of the controllers.
const controllersUser = "test-controllers"

var (
	// host is the installation that all tests share.
	host *harness.Installation
	// openAPIBefore is the OpenAPI v2 document of the host before the registration.
	openAPIBefore []byte
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) (code int) {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	dir, err := os.MkdirTemp("", "knative-aggregated-")
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
	response, err := cluster.Admin.Send(context(), harness.Request{Method: http.MethodGet, Path: "/openapi/v2"})
	if err != nil || response.Code != http.StatusOK {
		return fail(fmt.Errorf("reading the host's OpenAPI document: %w, %+v", err, response))
	}
	openAPIBefore = response.Body
	host, err = harness.Install(cluster, dir+"/server", "apiserver",
		"--controllers-user="+controllersUser,
		"--shutdown-delay-duration="+shutdownDelay.String())
	if err != nil {
		return fail(err)
	}
	code = m.Run()
	if err := host.Server.Stop(); err != nil {
		return fail(fmt.Errorf("%w\n%s", err, host.Logs()))
	}
	if lines := refusals(host.Logs()); len(lines) > 0 {
		return fail(fmt.Errorf("the host refused the server something: the shipped RBAC lacks a rule (P7, P8):\n%s", strings.Join(lines, "\n")))
	}
	return code
}

// refusals returns the lines of the server's log about its own requests that the host rejected.
func refusals(log string) (lines []string) {
	for line := range strings.Lines(log) {
		if strings.Contains(line, "forbidden") && strings.Contains(line, "system:serviceaccount:knative-system:knative-apiserver") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}
