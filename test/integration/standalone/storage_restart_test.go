package standalone

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/informers/externalversions"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

func wantGoneError(t testing.TB, err error) {
	t.Helper()
	if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Errorf("got %v, want 410", err)
	}
}

// TestRestart checks that a restart on the same directory keeps objects, their versions, and the certificates of users.
func TestRestart(t *testing.T) {
	dir := t.TempDir()
	first := harness.RunAPI(t, dir, "--controllers-user=admin")
	clients := clientsOf(t, first)
	createNamespace(t, clients, "shop")
	var before []object
	for _, k := range harness.Kinds() {
		if k.Kind == "Revision" {
			continue
		}
		obj := k.Object("shop", "a")
		clients.Do(t, harness.Request{Method: "POST", Path: k.Collection("shop"), Body: obj}).Object(t)
		before = append(before, clients.Do(t, harness.Request{
			Method: "PATCH", Path: pathOf(obj) + "/status", ContentType: mergePatch, Body: object{"status": readyStatus()},
		}).Object(t).Object)
	}
	certificates := func() map[string]string {
		contents := map[string]string{}
		files, err := filepath.Glob(filepath.Join(dir, "pki", "*"))
		if err != nil || len(files) < 6 {
			t.Fatalf("got %d files of certificates: %v", len(files), err)
		}
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			contents[filepath.Base(file)] = string(content)
			info, err := os.Stat(file)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(file, ".key") && info.Mode().Perm() != 0o600 {
				t.Errorf("%s has mode %v", file, info.Mode())
			}
		}
		return contents
	}
	kept := certificates()

	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	if code, err := first.ExitCode(); code != 0 || err != nil {
		t.Errorf("exit code %d, %v", code, err)
	}

	second := harness.RunAPI(t, dir)
	if diff := cmp.Diff(kept, certificates()); diff != "" {
		t.Errorf("certificates (-before +after):\n%s", diff)
	}
	clients = clientsOf(t, second)
	for _, object := range before {
		path := harness.KindOf(object["kind"].(string)).Path("shop", "a")
		if diff := cmp.Diff(object, clients.Do(t, harness.Request{Method: "GET", Path: path}).Object(t).Object); diff != "" {
			t.Errorf("%s (-before +after):\n%s", path, diff)
		}
	}
}

// TestTwoServersOnOneDirectory checks that a second server on the same directory does not start: it would corrupt the data.
func TestTwoServersOnOneDirectory(t *testing.T) {
	dir := t.TempDir()
	first := harness.RunAPI(t, dir)
	kubeconfig, err := os.ReadFile(first.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	binary, err := harness.Binary()
	if err != nil {
		t.Fatal(err)
	}
	second, err := harness.StartProcess(nil, binary, "standalone", "--data-dir", dir, "--secure-port", "0")
	if err != nil {
		t.Fatal(err)
	}
	second.StopAfter(t)
	if code, err := second.ExitCode(); code <= 0 || err != nil {
		t.Errorf("exit code %d, %v; want a failure", code, err)
	}
	if log := second.Log(); !strings.Contains(log, "in use by another knative-apiserver") || !strings.Contains(log, dir) || strings.Contains(log, "is ready") {
		t.Errorf("the second server says:\n%s", log)
	}
	// The first server continues, and its kubeconfig stays valid.
	if after, err := os.ReadFile(first.Kubeconfig); err != nil || string(after) != string(kubeconfig) {
		t.Errorf("the kubeconfig changed: %v", err)
	}
	k := harness.KindOf("Broker")
	clientsOf(t, first).Do(t, harness.Request{Method: "POST", Path: k.Collection("shop"), Body: k.Object("shop", "a")}).Object(t)
}

func TestStart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "there", "yet")
	s := harness.RunAPI(t, dir)
	if port := mustURL(t, s.URL).Port(); port == "" || port == "0" {
		t.Errorf("port 0 gave %q", port)
	}
	if want := filepath.Join(dir, "kubeconfig"); s.Kubeconfig != want {
		t.Errorf("the kubeconfig is %s, want %s", s.Kubeconfig, want)
	}
	info, err := os.Stat(s.Kubeconfig)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the kubeconfig: %v, %v", info.Mode(), err)
	}
	if got := strings.Count(s.Log(), "knative-apiserver is ready"); got != 1 {
		t.Errorf("got %d lines that report readiness", got)
	}
	// One authority signs the certificates of the server and of the administrator.
	block, _ := pem.Decode(clientsOf(t, s).Config.CertData)
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if got := certificate.Subject.Organization; len(got) != 1 || got[0] != "system:masters" {
		t.Errorf("the administrator is of %v", got)
	}
}

func TestBadFlags(t *testing.T) {
	binary, err := harness.Binary()
	if err != nil {
		t.Fatal(err)
	}
	port := mustURL(t, server.URL).Port()
	for want, args := range map[string][]string{
		"--data-dir must not be empty":    {"--data-dir", ""},
		"must be from 0 to 65535":         {"--secure-port", "65536"},
		"unknown flag: --unknown":         {"--unknown"},
		"listen on --secure-port " + port: {"--secure-port", port, "--data-dir", t.TempDir()},
		"create data directory: mkdir":    {"--secure-port", "0", "--data-dir", "/dev/null/data"},
	} {
		p, err := harness.StartProcess(nil, binary, append([]string{"standalone"}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		p.StopAfter(t)
		if code, err := p.ExitCode(); code <= 0 || err != nil || !strings.Contains(p.Log(), want) {
			t.Errorf("%v: exit code %d, %v; want an error with %q:\n%s", args, code, err, want, p.Log())
		}
	}
}

func mustURL(t testing.TB, s string) *url.URL {
	t.Helper()
	u, err := url.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// TestInformersAcrossARestart checks that informers of the generated clientset resume after a restart of the server (P20).
func TestInformersAcrossARestart(t *testing.T) {
	dir := t.TempDir()
	first := harness.RunAPI(t, dir)
	port := mustURL(t, first.URL).Port()
	clients := clientsOf(t, first)
	factory := externalversions.NewSharedInformerFactory(clients.Knative, 0)
	services := factory.Serving().V1().Services()
	lister, synced := services.Lister(), services.Informer().HasSynced
	factory.Start(t.Context().Done())
	t.Cleanup(factory.Shutdown)

	wantListed := func(names ...string) {
		t.Helper()
		harness.Eventually(t, "the informer has "+strings.Join(names, ", "), func() error {
			list, err := lister.Services("shop").List(labels.Everything())
			if err != nil {
				return err
			}
			got := map[string]bool{}
			for _, s := range list {
				got[s.Name] = true
			}
			want := map[string]bool{}
			for _, name := range names {
				want[name] = true
			}
			if diff := cmp.Diff(want, got); diff != "" || !synced() {
				return fmt.Errorf("(-want +got):\n%s", diff)
			}
			return nil
		})
	}
	create := func(c *harness.Clients, name string) {
		t.Helper()
		obj := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}}
		obj.Spec.Template.Spec.Containers = []corev1.Container{{Image: "registry.example.com/hello"}}
		if _, err := c.Knative.ServingV1().Services("shop").Create(t.Context(), obj, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	create(clients, "a")
	create(clients, "b")
	wantListed("a", "b")

	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	second := harness.RunAPI(t, dir, "--secure-port", port)
	clients = clientsOf(t, second)
	create(clients, "c")
	if err := clients.Knative.ServingV1().Services("shop").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	wantListed("b", "c")

	second.Kill()
	third := harness.RunAPI(t, dir, "--secure-port", port)
	create(clientsOf(t, third), "d")
	wantListed("b", "c", "d")
}
