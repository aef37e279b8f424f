package standalone

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

const (
	readmeURL  = `url=$(kubectl get broker default -o jsonpath='{.status.address.url}')`
	readmePost = `curl -i $url -d hello -H 'Ce-Specversion: 1.0' -H 'Ce-Id: 1' -H 'Ce-Source: /readme' -H 'Ce-Type: com.example.greeting'`
)

// readmeCommands are the commands of the README, with the test that runs each of them. TestReadme runs the ones that are marked
// with it.
var readmeCommands = map[string]string{
	"make run":  "TestReadme",
	"make test": "CI",
	"export KUBECONFIG=knative-apiserver-data/kubeconfig": "TestReadme",
	"kubectl apply -f artifacts/samples/":                 "TestReadme",
	"kubectl get knative -A":                              "TestReadme",
	"kubectl explain ksvc.spec.template.spec":             "TestReadme",
	readmeURL:  "TestReadme",
	readmePost: "TestReadme",
	"make image-push REF=registry.example.com/knative-apiserver:v1": "hack/e2e.sh",
	"make install IMAGE=registry.example.com/knative-apiserver:v1":  "hack/e2e.sh",
	"make uninstall": "hack/e2e.sh",
	"make help":      "TestReadme",
}

// TestReadme follows the README.
func TestReadme(t *testing.T) {
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var commands []string
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(content), -1) {
		commands = append(commands, strings.Split(strings.TrimSpace(block[1]), "\n")...)
	}
	for _, command := range commands {
		if readmeCommands[command] == "" {
			t.Errorf("no test runs the README's command %q", command)
		}
	}
	for command := range readmeCommands {
		if !slices.Contains(commands, command) {
			t.Errorf("the README no longer has the command %q", command)
		}
	}

	if out, err := exec.Command("make", "-C", root, "help").CombinedOutput(); err != nil {
		t.Errorf("make help: %v\n%s", err, out)
	}
	// The build has no timeout; the commands after it have one.
	if out, err := exec.CommandContext(t.Context(), "make", "-C", root, "build").CombinedOutput(); err != nil {
		t.Fatalf("make build: %v\n%s", err, out)
	}
	data := t.TempDir()
	run, err := harness.StartProcess(nil, "make", "-C", root, "run", "RUNFLAGS=--data-dir "+data+" --secure-port 0")
	if err != nil {
		t.Fatal(err)
	}
	run.StopAfter(t)
	ready, err := run.WaitForOutput(regexp.MustCompile(`knative-apiserver is ready at \S+, kubeconfig (\S+)`))
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(data, "kubeconfig"); ready[1] != want {
		t.Errorf("kubeconfig %s, want %s", ready[1], want)
	}
	if _, err := run.WaitForOutput(regexp.MustCompile(`(?m)^curl http://hello\.default\.localhost:\d+\nHello World!$`)); err != nil {
		t.Fatal(err)
	}
	// The last line that the sample of Eventing prints.
	if _, err := run.WaitForOutput(regexp.MustCompile(`(?m)^Subscription hello, reply to the Broker, Trigger log: the uri got \{.*"source":"/hello".*"Hello World!\\n"\}$`)); err != nil {
		t.Fatal(err)
	}
	kubectl := harness.NewKubectl(t, ready[1], "")
	kubectl.Must(t, "", "apply", "-f", filepath.Join(root, "artifacts", "samples"))
	kubectl.Must(t, "", "explain", "ksvc.spec.template.spec")
	postFromReadme(t, ready[1], filepath.Join(data, "revisions", "logs", "default"))
	table := kubectl.Must(t, "", "get", "knative", "-A")
	// All kinds that users create.
	for _, kind := range harness.Kinds() {
		if kind.Kind == "Revision" {
			continue
		}
		if !strings.Contains(table, strings.ToLower(kind.Kind)+"."+kind.Group+"/") {
			t.Errorf("no %s in the answer of kubectl get knative -A:\n%s", kind.Kind, table)
		}
	}
}

// postFromReadme sends an event like the README, and waits until it is in the logs of a Service.
func postFromReadme(t *testing.T, kubeconfig, logs string) {
	t.Helper()
	bin, err := harness.KubernetesBin()
	if err != nil {
		t.Fatal(err)
	}
	post := exec.CommandContext(t.Context(), "bash", "-ec", readmeURL+"\n"+readmePost)
	post.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "PATH="+bin+":"+os.Getenv("PATH"))
	if out, err := post.CombinedOutput(); err != nil || !strings.Contains(string(out), " 202 ") {
		t.Fatalf("sending an event: %v, want 202\n%s", err, out)
	}
	harness.Eventually(t, "the Service has the event", func() error {
		files, err := filepath.Glob(filepath.Join(logs, "*", "*.log"))
		if err != nil {
			return err
		}
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			if bytes.Contains(content, []byte(`"source": "/readme"`)) {
				return nil
			}
		}
		return fmt.Errorf("it is in none of %q", files)
	})
}
