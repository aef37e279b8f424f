// Package aggregated tests the server behind a real kube-aggregator, registered by the shipped manifests and
// with the rights of the shipped RBAC alone. Points such as P7 are those of what an aggregated API server has
// to get right.
//
// Tests that stop or restart the one server, or change what the host knows of it, run one by one; all others
// call t.Parallel, and so run once those are done.
package aggregated

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// controllersUser may create Revisions here: the test's stand-in for the controllers, by --controllers-user.
const controllersUser = "test-controllers"

var (
	// host is the installation that all tests share.
	host *harness.Installation
	// openAPIBefore is the host's OpenAPI v2 document from before it knew of us.
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

// refusals returns the lines of the server's log that tell of a request of its own that the host refused.
func refusals(log string) (lines []string) {
	for line := range strings.Lines(log) {
		if strings.Contains(line, "forbidden") && strings.Contains(line, "system:serviceaccount:knative-system:knative-apiserver") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}
