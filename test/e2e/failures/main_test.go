// Package failures tests the failures that users make on a real cluster with a node: what a Service, its Configuration
// and its Revision say of each within 10 seconds, and that mending it helps.
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
	// prompt is how soon after it was made a failure is to be told.
	prompt = 10 * time.Second
	// patience bounds what takes several steps, on a machine that does other things as well.
	patience = time.Minute
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
		// They wait for the kubelet most of the time.
		err = flag.Set("test.parallel", "4")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}
