package aggregated

import (
	"bufio"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"slices"
	"testing"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// auditOf returns the audit event of a write from a log.
func auditOf(path, verb, namespace, resource string) (*auditv1.Event, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	lines := bufio.NewReader(file)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return nil, errors.New("the event does not exist")
		}
		var event auditv1.Event
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, err
		}
		if event.ObjectRef != nil && event.ObjectRef.Namespace == namespace && event.ObjectRef.Resource == resource && event.Verb == verb {
			return &event, nil
		}
	}
}

// TestAudit checks that a write has the same user and the same audit ID in the audit logs of the host and of this server (P23).
func TestAudit(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "audit", nil)
	host.Bind(t, ns, "audited-user", "ClusterRole", "edit")
	granted(t, ns, "audited-user", "create", harness.KindOf("Service"))
	user := clientsOf(t, host.User(t, "audited-user", "audited-group"))
	for _, test := range []struct {
		name    string
		kind    string
		clients *harness.Clients
		user    string
		group   string
	}{
		{"certificate", "Service", user, "audited-user", "audited-group"},
		{"impersonation", "Route", host.Admin.As(t, "audited-guise", "system:masters"), "audited-guise", "system:masters"},
	} {
		t.Run(test.name, func(t *testing.T) {
			kind := harness.KindOf(test.kind)
			response := post(t, test.clients, kind.Object(ns, "audited"))
			wantCode(t, response, http.StatusCreated)
			annotation := response.Object(t).GetAnnotations()[kind.Group+"/creator"]
			if annotation != test.user {
				t.Errorf("the creator is %q, want %q", annotation, test.user)
			}
			var events []*auditv1.Event
			for _, log := range []string{host.AuditLog, host.ServerAuditLog()} {
				harness.Eventually(t, "the request is in "+log, func() error {
					event, err := auditOf(log, "create", ns, kind.Resource)
					if err == nil {
						events = append(events, event)
					}
					return err
				})
			}
			theirs, ours := events[0], events[1]
			if ours.AuditID != theirs.AuditID || string(ours.AuditID) != response.Header.Get("Audit-Id") {
				t.Errorf("audit IDs: ours %s, the host's %s, the client's %s", ours.AuditID, theirs.AuditID, response.Header.Get("Audit-Id"))
			}
			if ours.User.Username != test.user || !slices.Contains(ours.User.Groups, test.group) {
				t.Errorf("our log names %+v, want %s of %s", ours.User, test.user, test.group)
			}
			asSeen := theirs.User
			if theirs.ImpersonatedUser != nil {
				asSeen = *theirs.ImpersonatedUser
			}
			if asSeen.Username != ours.User.Username || !slices.Equal(asSeen.Groups, ours.User.Groups) {
				t.Errorf("our log names %+v, the host's %+v", ours.User, asSeen)
			}
			if ours.RequestObject == nil || ours.ResponseObject == nil {
				t.Error("the shipped policy must record the written object")
			}
		})
	}
}
