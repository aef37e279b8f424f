package serving

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// logPath returns the path of a Revision's log.
func (s *space) logPath(revision, query string) string {
	path := harness.KindOf("Revision").Path(s.namespace, revision) + "/log"
	if query != "" {
		path += "?" + query
	}
	return path
}

// log reads the log of a Revision with kubectl.
func (s *space) log(t testing.TB, revision, query string) string {
	t.Helper()
	return s.kubectl.Must(t, "", "get", "--raw", s.logPath(revision, query))
}

// print makes each Pod of a Revision print a line with a text.
func (s *space) print(t testing.TB, revision, text string) {
	t.Helper()
	pods, err := s.pods(t.Context(), revision)
	if err != nil {
		t.Fatal(err)
	}
	for i := range pods {
		header := http.Header{"Ce-Specversion": {"1.0"}, "Ce-Id": {text}, "Ce-Source": {"/test"}, "Ce-Type": {"print"}}
		a, err := ask(t.Context(), http.DefaultClient, http.MethodPost, "http://"+pods[i].Status.PodIP+":8080", header, nil)
		if err != nil || a.code != http.StatusAccepted {
			t.Fatalf("%+v, %v", a, err)
		}
	}
}

// TestLog covers revisions/<name>/log: the lines of all Pods with the names of the Pods, and the query parameters.
func TestLog(t *testing.T) {
	t.Parallel()
	s := newSpace(t, "log", nil)
	service := s.deploy(t, s.app("hello", instances("2")))
	revision := s.revision(t, service)
	pods := s.untilPods(t, revision.Name, 2)
	if !strings.HasSuffix(revision.Status.LogURL, s.logPath(revision.Name, "")) {
		t.Errorf("status.logUrl is %q, want the path %s", revision.Status.LogURL, s.logPath(revision.Name, ""))
	}
	// says returns an error unless the log has one line with a text from each Pod, and count lines in all.
	says := func(query, text string, count int) error {
		log := s.log(t, revision.Name, query)
		lines := strings.Split(strings.TrimSuffix(log, "\n"), "\n")
		for i := range pods {
			found := 0
			for _, line := range lines {
				if strings.HasPrefix(line, "["+pods[i].Name+"] ") && strings.Contains(line, `"id":"`+text+`"`) {
					found++
				}
			}
			if found != 1 {
				return fmt.Errorf("the log with %q has %d lines %q of Pod %s: %q", query, found, text, pods[i].Name, log)
			}
		}
		if len(lines) != count {
			return fmt.Errorf("the log with %q has %d lines, want %d: %q", query, len(lines), count, log)
		}
		return nil
	}
	// The output of a container appears in its log with a delay.
	eventually := func(query, text string, count int) {
		t.Helper()
		until(t, "the log has the printed text", func() error { return says(query, text, count) })
	}
	s.print(t, revision.Name, "first")
	eventually("", "first", 2)
	until(t, "the first line is more than a second old", func() error {
		if log := s.log(t, revision.Name, "sinceSeconds=1"); log != "" {
			return fmt.Errorf("the log is %q", log)
		}
		return nil
	})
	s.print(t, revision.Name, "second")
	eventually("", "second", 4)
	eventually("tailLines=1", "second", 2)
	eventually("container=user-container&sinceSeconds=600", "first", 4)
	s.kubectl.MustFail(t, "container", "", "get", "--raw", s.logPath(revision.Name, "container=none"))
	s.kubectl.MustFail(t, "tailLines", "", "get", "--raw", s.logPath(revision.Name, "tailLines=-1"))
	s.kubectl.MustFail(t, "not found", "", "get", "--raw", s.logPath("hello-00009", ""))

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Admin.Config.Host+s.logPath(revision.Name, "follow=true&tailLines=1"), nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := s.Admin.HTTP.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	for _, text := range []string{"second", "third"} {
		if text == "third" {
			s.print(t, revision.Name, text)
		}
		for range pods {
			if !lines.Scan() || !strings.Contains(lines.Text(), `"id":"`+text+`"`) {
				t.Fatalf("followed log: got %q, %v, want %q", lines.Text(), lines.Err(), text)
			}
		}
	}
}

// TestLogRights checks that reading a log requires its own permission, and no other.
func TestLogRights(t *testing.T) {
	t.Parallel()
	s := newSpace(t, "log-rights", nil)
	revision := s.deploy(t, s.app("hello")).Status.LatestReadyRevisionName
	for name, resources := range map[string][]string{"reader": {"revisions"}, "logger": {"revisions/log"}} {
		s.apply(t, &rbacv1.Role{
			TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "Role"},
			ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name},
			Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"serving.knative.dev"}, Resources: resources, Verbs: []string{"get"}}},
		})
		s.AsCluster().Bind(t, s.namespace, name, "Role", name)
	}
	path := s.logPath(revision, "")
	// The authorizers of both servers watch roles.
	until(t, "an authorized user reads the log", func() error {
		if got := s.kubectl.Run(t, "", "get", "--raw", path, "--as", "logger"); got.Code != 0 {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
	until(t, "an authorized user reads the Revision", func() error {
		if got := s.kubectl.Run(t, "", "get", "rev", revision, "--as", "reader"); got.Code != 0 {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
	s.kubectl.MustFail(t, `cannot get resource "revisions/log"`, "", "get", "--raw", path, "--as", "reader")
	s.kubectl.MustFail(t, `cannot get resource "revisions"`, "", "get", "rev", revision, "--as", "logger")
}
