package monitoring

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/yaml"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// ruleGroups is a file of rules.
type ruleGroups struct {
	Groups []struct {
		Rules []rule `json:"rules"`
	} `json:"groups"`
}

// rule is a recording or an alerting rule.
type rule struct {
	Record      string            `json:"record"`
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// rules returns all shipped rules.
func rules(t *testing.T) []rule {
	t.Helper()
	var file ruleGroups
	parse(t, artifact(t, "rules.yaml"), &file)
	var all []rule
	for _, group := range file.Groups {
		all = append(all, group.Rules...)
	}
	return all
}

func parse(t *testing.T, path string, into any) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(content, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// TestRules checks the rules with promtool, and runs their unit tests.
func TestRules(t *testing.T) {
	t.Parallel()
	promtool := tool(t, "promtool")
	for _, args := range [][]string{
		{"check", "rules", artifact(t, "rules.yaml")},
		{"test", "rules", filepath.Join("testdata", "alerts.yaml")},
	} {
		output, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput()
		if err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, output)
		}
	}
}

// TestAlertsAreComplete checks that each alert has a severity, texts, a section in its runbook, and unit tests in which it fires and in which
// it does not.
func TestAlertsAreComplete(t *testing.T) {
	var tests struct {
		Tests []struct {
			AlertTests []struct {
				Name     string `json:"alertname"`
				Expected []any  `json:"exp_alerts"`
			} `json:"alert_rule_test"`
		} `json:"tests"`
	}
	parse(t, filepath.Join("testdata", "alerts.yaml"), &tests)
	fires, silent := sets.New[string](), sets.New[string]()
	for _, test := range tests.Tests {
		for _, alert := range test.AlertTests {
			if len(alert.Expected) > 0 {
				fires.Insert(alert.Name)
			} else {
				silent.Insert(alert.Name)
			}
		}
	}
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	runbook, err := os.ReadFile(filepath.Join(root, "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rules(t) {
		if r.Alert == "" {
			continue
		}
		if severity := r.Labels["severity"]; severity != "critical" && severity != "warning" {
			t.Errorf("%s: severity is %q", r.Alert, severity)
		}
		for _, name := range []string{"summary", "description"} {
			if r.Annotations[name] == "" {
				t.Errorf("%s has no %s", r.Alert, name)
			}
		}
		if want := "docs/operations.md#" + strings.ToLower(r.Alert); r.Annotations["runbook"] != want {
			t.Errorf("%s: runbook is %q, want %s", r.Alert, r.Annotations["runbook"], want)
		}
		if !regexp.MustCompile(`(?m)^#+ ` + r.Alert + `$`).Match(runbook) {
			t.Errorf("docs/operations.md has no section %s", r.Alert)
		}
		if !fires.Has(r.Alert) || !silent.Has(r.Alert) {
			t.Errorf("testdata/alerts.yaml must have a test in which %s fires, and one in which it does not", r.Alert)
		}
	}
}
