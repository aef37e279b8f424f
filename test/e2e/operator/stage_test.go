package operator

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// stage is the target of the load: one namespace with a Service with two Pods, and a Broker with a Trigger to it.
type stage struct {
	namespace string
	// host is the external host name of the Service.
	host string
	// ingress is the address of the Broker, by the IP of its core Service.
	ingress string
	// read is how far received has read each log file, in bytes, and found is what it returned.
	read  map[string]int64
	found map[string]time.Time
}

// theStage is shared by all tests of the package.
var theStage *stage

const (
	appName, brokerName = "app", "default"
	instances           = "2"
)

// setUp skips the test without a cluster, waits until the installation is complete, and returns the stage.
func setUp(t *testing.T) *stage {
	t.Helper()
	if node == nil {
		t.Skip(harness.ErrNoNode)
	}
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		if text := node.Unready(context.WithoutCancel(t.Context())); text != "" {
			t.Log(text)
		}
	})
	awaitWhole(t)
	if theStage == nil {
		theStage = newStage(t)
	}
	return theStage
}

func newStage(t *testing.T) *stage {
	t.Helper()
	image, err := node.AppImage()
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{namespace: newNamespace(t)}
	create(t, s.app(image))
	create(t, harness.KindOf("Broker").Object(s.namespace, brokerName))
	trigger := harness.KindOf("Trigger").Object(s.namespace, appName)
	trigger.Object["spec"] = map[string]any{"broker": brokerName, "subscriber": map[string]any{
		"ref": map[string]any{"apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": appName},
	}}
	create(t, trigger)
	address := s.awaitReady(t, "Service", appName, "url")
	s.host = mustParse(t, address).Host
	address = s.awaitReady(t, "Broker", brokerName, "address", "url")
	s.awaitReady(t, "Trigger", appName, "subscriberUri")
	ingress, err := node.Host.CoreV1().Services(harness.SystemNamespace).Get(t.Context(), "broker-ingress", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.ingress = "http://" + ingress.Spec.ClusterIP + mustParse(t, address).Path
	return s
}

// app is a Service with permanent Pods, so that their logs are permanent too.
func (s *stage) app(image string) *unstructured.Unstructured {
	u := harness.KindOf("Service").Object(s.namespace, appName)
	u.Object["spec"] = map[string]any{"template": map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{
			"autoscaling.knative.dev/min-scale": instances, "autoscaling.knative.dev/max-scale": instances,
		}},
		"spec": map[string]any{"containers": []any{map[string]any{"image": image}}},
	}}
	return u
}

func create(t *testing.T, u *unstructured.Unstructured) {
	t.Helper()
	kind := harness.KindOf(u.GetKind())
	if _, err := node.Admin.Dynamic.Resource(kind.GVR()).Namespace(u.GetNamespace()).Create(t.Context(), u, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func mustParse(t *testing.T, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// awaitReady waits until an object is ready, and returns a field of its status.
func (s *stage) awaitReady(t *testing.T, kindName, name string, field ...string) (value string) {
	t.Helper()
	kind := harness.KindOf(kindName)
	eventually(t, patience, kindName+" "+name+" is ready", func(ctx context.Context) error {
		u, err := node.Admin.Dynamic.Resource(kind.GVR()).Namespace(s.namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
		for _, c := range conditions {
			if c, ok := c.(map[string]any); ok && c["type"] == "Ready" && c["status"] == "True" {
				value, _, _ = unstructured.NestedString(u.Object, append([]string{"status"}, field...)...)
				return nil
			}
		}
		return fmt.Errorf("its conditions are %v", conditions)
	})
	return value
}

// received returns the time at which each event first reached a Pod, by its ID. It reads the kubelet's log files, which
// outlive containers and need no API server, and only what they have got since the last call.
func (s *stage) received() (map[string]time.Time, error) {
	if s.read == nil {
		s.read, s.found = map[string]int64{}, map[string]time.Time{}
	}
	files, err := filepath.Glob(filepath.Join(filepath.Dir(node.Kubeconfig), "node", "logs", s.namespace+"_*", "*", "*.log"))
	if err != nil {
		return nil, err
	}
	for _, path := range files {
		if err := s.readEvents(path); err != nil {
			return nil, err
		}
	}
	return s.found, nil
}

// readEvents reads the events in a log file. Its lines are "<time> <stream> <F or P> <text>".
func (s *stage) readEvents(path string) error {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.Seek(s.read[path], io.SeekStart); err != nil {
		return err
	}
	for lines := bufio.NewReader(file); ; {
		text, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) { // the rest of the line follows
			return nil
		}
		if err != nil {
			return err
		}
		s.read[path] += int64(len(text))
		parts := strings.SplitN(text, " ", 4)
		if len(parts) < 4 {
			continue
		}
		var line struct {
			Received struct {
				ID string `json:"id"`
			} `json:"received"`
		}
		at, err := time.Parse(time.RFC3339Nano, parts[0])
		if err != nil || json.Unmarshal([]byte(parts[3]), &line) != nil || line.Received.ID == "" {
			continue
		}
		if first, there := s.found[line.Received.ID]; !there || at.Before(first) {
			s.found[line.Received.ID] = at
		}
	}
}
