package route

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// TestResolve covers serving 10.2-1, 10.2-2, 10.2-3 and 6-6: the Revisions of targets, and the condition AllTrafficAssigned for targets without one.
func TestResolve(t *testing.T) {
	isReady := ready(corev1.ConditionTrue, "")
	failed := ready(corev1.ConditionFalse, "exit code 1")
	tests := []struct {
		name    string
		traffic []servingv1.TrafficTarget
		service string
		want    string
	}{
		{"without traffic, the Configuration of its name", nil, "", "hello-2+:100 True"},
		{"without traffic, the Configuration of its Service", nil, "other", "other-1+:100 True"},
		{"latest and pinned", []servingv1.TrafficTarget{follow("hello", 90), pin("hello-1", 10)}, "", "hello-2+:90 hello-1:10 True"},
		{"tag without a share", []servingv1.TrafficTarget{follow("hello", 100), {RevisionName: "hello-1", Tag: "old"}}, "", "hello-2+:100 old=hello-1:0 True"},
		{"no such Configuration", []servingv1.TrafficTarget{follow("none", 100)}, "", `False ConfigurationMissing Configuration "none" referenced in traffic not found.`},
		{"no such Revision", []servingv1.TrafficTarget{pin("none", 100)}, "", `False RevisionMissing Revision "none" referenced in traffic not found.`},
		{"Configuration waits", []servingv1.TrafficTarget{follow("waiting", 100)}, "", `Unknown RevisionMissing Configuration "waiting" is waiting for a Revision to become ready.`},
		{"Configuration failed", []servingv1.TrafficTarget{follow("failed", 100)}, "", `False RevisionMissing Configuration "failed" does not have any ready Revision: exit code 1`},
		{"latest ready Revision deleted", []servingv1.TrafficTarget{follow("deleted", 100)}, "", `False RevisionMissing Revision "deleted-1" referenced in traffic not found.`},
		{"pinned one waits", []servingv1.TrafficTarget{pin("hello-3", 100)}, "", `Unknown RevisionMissing Revision "hello-3" is not yet ready.`},
		{"pinned one failed", []servingv1.TrafficTarget{pin("hello-4", 100)}, "", `False RevisionMissing Revision "hello-4" failed to become ready: exit code 1`},
		{"a failure takes precedence over waiting", []servingv1.TrafficTarget{follow("waiting", 50), pin("hello-4", 50)}, "", `False RevisionMissing Revision "hello-4" failed to become ready: exit code 1`},
		{"own Service's Revision", []servingv1.TrafficTarget{pin("hello-1", 100)}, "hello", "hello-1:100 True"},
		{"another Service's Revision", []servingv1.TrafficTarget{pin("hello-1", 100)}, "other", `False RevisionNotOwned Revision "hello-1" does not belong to Service "other".`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t, newConfiguration("hello", "hello-2", isReady), newConfiguration("other", "other-1", isReady),
				newConfiguration("waiting", ""), newConfiguration("failed", "", failed), newConfiguration("deleted", "deleted-1", isReady),
				newRevision("hello", 1, isReady), newRevision("hello", 2, isReady), newRevision("hello", 3), newRevision("hello", 4, failed), newRevision("other", 1, isReady))
			route := newRoute("hello", tt.traffic...)
			if tt.service != "" {
				route.Labels = map[string]string{servingv1.ServiceLabelKey: tt.service}
			}
			from := sources{configuration: f.Configurations.Configurations("default").Get, revision: f.Revisions.Revisions("default").Get}
			targets, assigned, err := resolve(route, from)
			if err != nil {
				t.Fatal(err)
			}
			got := strings.TrimSpace(fmt.Sprintf("%s %s %s", assigned.Status, assigned.Reason, assigned.Message))
			if assigned.Status == corev1.ConditionTrue {
				got = show(targets) + " " + got
			}
			if got != tt.want {
				t.Errorf("resolved to\n%s, want\n%s", got, tt.want)
			}
		})
	}
	t.Run("Configuration changed since it failed", func(t *testing.T) {
		configuration := newConfiguration("hello", "", failed)
		configuration.ObjectMeta = metav1.ObjectMeta{Namespace: "default", Name: "hello", Generation: 2}
		f := newFixture(t, configuration)
		from := sources{configuration: f.Configurations.Configurations("default").Get, revision: f.Revisions.Revisions("default").Get}
		if _, assigned, _ := resolve(newRoute("hello"), from); assigned.Status != corev1.ConditionUnknown {
			t.Errorf("AllTrafficAssigned is %+v, want Unknown (serving 6-7)", assigned)
		}
	})
}

// show writes targets as "tag=revision+:percent", where + marks the latest.
func show(targets []target) string {
	var parts []string
	for _, t := range targets {
		part := t.revision
		if t.tag != "" {
			part = t.tag + "=" + part
		}
		if t.latest {
			part += "+"
		}
		parts = append(parts, fmt.Sprintf("%s:%d", part, t.percent))
	}
	return strings.Join(parts, " ")
}

// TestSurviving checks that an assignment keeps serving if Revisions of it are deleted.
func TestSurviving(t *testing.T) {
	of := func(shares ...int64) []target {
		var targets []target
		for i, percent := range shares {
			targets = append(targets, target{revision: string(rune('a' + i)), percent: percent})
		}
		return targets
	}
	tests := []struct {
		name    string
		targets []target
		gone    string
		want    string
	}{
		{"nothing gone", of(50, 50), "", "a:50 b:50"},
		{"one gone", of(50, 25, 25), "a", "b:50 c:50"},
		{"rounding", of(1, 33, 33, 33), "a", "b:34 c:33 d:33"},
		{"all gone", of(50, 50), "ab", "a:50 b:50"},
		{"only a tag is left", of(100, 0), "a", "a:100 b:0"},
		{"the Revision of a tag is deleted", of(100, 0), "b", "a:100"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := show(tt.targets)
			got := surviving(tt.targets, func(revision string) bool { return !strings.Contains(tt.gone, revision) })
			if show(got) != tt.want {
				t.Errorf("left are %s, want %s", show(got), tt.want)
			}
			if show(tt.targets) != before {
				t.Errorf("the targets given changed to %s", show(tt.targets))
			}
		})
	}
}
