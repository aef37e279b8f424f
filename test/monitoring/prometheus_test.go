package monitoring

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// patience bounds every wait. A passing test never waits that long.
const patience = 2 * time.Minute

// eventually waits until probe succeeds.
func eventually(t *testing.T, what string, probe func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := harness.Poll(ctx, probe); err != nil {
		t.Fatalf("wait until %s: %v", what, err)
	}
}

// overridden returns the shipped rules for a test: alerts fire at once, and deliveries are late after a second instead of five minutes.
// Expressions and labels are the shipped ones otherwise.
func overridden(t *testing.T) string {
	t.Helper()
	content, err := os.ReadFile(artifact(t, "rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	const late, soon = `{kind=~"Trigger|Subscription"}) > 300`, `{kind=~"Trigger|Subscription"}) > 1`
	if strings.Count(string(content), late) != 1 {
		t.Fatalf("the rules do not contain %q", late)
	}
	text := strings.Replace(string(content), late, soon, 1)
	return regexp.MustCompile(`(?m)^( +for: ).*$`).ReplaceAllString(text, "${1}0s")
}

// prometheus is a running Prometheus that reads the metrics of a server each second.
type prometheus struct {
	url string
}

var listening = regexp.MustCompile(`msg="Listening on" address=(\S+)`)

// runPrometheus runs Prometheus with the overridden rules until the test ends.
func runPrometheus(t *testing.T, server *harness.Clients) *prometheus {
	t.Helper()
	binary, dir := tool(t, "prometheus"), t.TempDir()
	api, err := url.Parse(server.Config.Host)
	if err != nil {
		t.Fatal(err)
	}
	file := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	tls := server.Config.TLSClientConfig
	config, err := json.Marshal(map[string]any{
		"global":     map[string]any{"scrape_interval": "1s", "evaluation_interval": "1s"},
		"rule_files": []string{file("rules.yaml", []byte(overridden(t)))},
		"scrape_configs": []any{map[string]any{
			"job_name": "knative-apiserver", "scheme": "https", "honor_labels": true,
			"tls_config": map[string]any{
				"ca_file": file("ca.crt", tls.CAData), "cert_file": file("tls.crt", tls.CertData), "key_file": file("tls.key", tls.KeyData),
			},
			"static_configs": []any{map[string]any{"targets": []string{api.Host}}},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	// JSON is YAML.
	process, err := harness.StartProcess(nil, binary, "--config.file", file("prometheus.yaml", config),
		"--storage.tsdb.path", filepath.Join(dir, "data"), "--web.listen-address", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	process.StopAfter(t)
	match, err := process.WaitForOutput(listening)
	if err != nil {
		t.Fatal(err)
	}
	return &prometheus{url: "http://" + match[1]}
}

// get calls the API of Prometheus.
func (p *prometheus) get(ctx context.Context, path string, parameters url.Values, into any) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+path+"?"+parameters.Encode(), http.NoBody)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer := struct {
		Error string `json:"error"`
		Data  any    `json:"data"`
	}{Data: into}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return fmt.Errorf("%s: %s: %w", path, response.Status, err)
	}
	if answer.Error != "" {
		return fmt.Errorf("%s: %s", path, answer.Error)
	}
	return nil
}

// sample is the value of a series.
type sample struct {
	labels map[string]string
	value  float64
}

// query returns the current finite values of an expression.
func (p *prometheus) query(ctx context.Context, expression string) ([]sample, error) {
	var data struct {
		Result []struct {
			Metric map[string]string `json:"metric"`
			Value  [2]any            `json:"value"`
		} `json:"result"`
	}
	if err := p.get(ctx, "/api/v1/query", url.Values{"query": {expression}}, &data); err != nil {
		return nil, fmt.Errorf("query %s: %w", expression, err)
	}
	var samples []sample
	for _, r := range data.Result {
		value, err := strconv.ParseFloat(fmt.Sprint(r.Value[1]), 64)
		if err != nil {
			return nil, fmt.Errorf("query %s: %w", expression, err)
		}
		if !math.IsNaN(value) && !math.IsInf(value, 0) {
			samples = append(samples, sample{r.Metric, value})
		}
	}
	return samples, nil
}

// holds returns an error unless an expression has a value.
func (p *prometheus) holds(ctx context.Context, expression string) error {
	samples, err := p.query(ctx, expression)
	if err == nil && len(samples) == 0 {
		err = fmt.Errorf("no data for %s", expression)
	}
	return err
}

// labelValues returns the values of a label.
func (p *prometheus) labelValues(ctx context.Context, label, selector string) (values []string, err error) {
	parameters := url.Values{}
	if selector != "" {
		parameters.Set("match[]", selector)
	}
	return values, p.get(ctx, "/api/v1/label/"+label+"/values", parameters, &values)
}

// fires waits until an alert fires with labels.
func (p *prometheus) fires(t *testing.T, alert string, labels map[string]string) {
	t.Helper()
	eventually(t, alert+" fires", func() error {
		samples, err := p.query(t.Context(), fmt.Sprintf(`ALERTS{alertname=%q, alertstate="firing"}`, alert))
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(samples, func(s sample) bool {
			for name, value := range labels {
				if s.labels[name] != value {
					return false
				}
			}
			return true
		}) {
			return fmt.Errorf("want one with %v, there are %v", labels, samples)
		}
		return nil
	})
}

// only checks that an alert fires for one name, and for no other object.
func (p *prometheus) only(t *testing.T, alert, name string) {
	t.Helper()
	samples, err := p.query(t.Context(), fmt.Sprintf(`ALERTS{alertname=%q, name!=%q}`, alert, name))
	if err = errors.Join(err, p.holds(t.Context(), fmt.Sprintf(`ALERTS{alertname=%q, name=%q}`, alert, name))); err != nil {
		t.Error(err)
	}
	if len(samples) > 0 {
		t.Errorf("%s fires for others: %v", alert, samples)
	}
}
