// Package failures tests mistakes of users on a real cluster with a node: a Service, its Configuration and its Revision report
// each of them within 10 seconds, and recover once it is fixed.
package failures

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

const (
	// prompt is the maximum time until a failure is reported, since the last change of the Service, or since its Pods have begun to start: a busy
	// machine is slow to do so.
	prompt = 10 * time.Second
	// patience is the timeout of several steps on a busy machine.
	patience = 4 * time.Minute
)

// node and image are the cluster, and the sample application in its registry.
var (
	node  *harness.Node
	image string
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	flag.Parse()
	var err error
	node, err = harness.OpenNode()
	if errors.Is(err, harness.ErrNoNode) {
		fmt.Println("skipped:", err)
		return 0
	}
	if err == nil {
		image, err = node.AppImage()
	}
	if err == nil {
		// They mostly wait for the kubelet.
		err = flag.Set("test.parallel", "4")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}
