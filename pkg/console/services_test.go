package console

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// TestRows adds up the targets of a Revision, and has the newest Revision first.
func TestRows(t *testing.T) {
	service := &servingv1.Service{}
	service.Status.Traffic = []servingv1.TrafficTarget{
		{RevisionName: "app-2", Percent: ptr.To(int64(70))},
		{RevisionName: "app-1", Percent: ptr.To(int64(20))},
		{RevisionName: "app-1", Percent: ptr.To(int64(10)), Tag: "old", URL: "http://old-app"},
	}
	now := time.Now()
	var revisions []servingv1.Revision
	for i, name := range []string{"app-1", "app-2", "app-3"} {
		revisions = append(revisions, servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(now.Add(time.Duration(i) * time.Second))}})
	}
	type row struct {
		Name    string
		Percent int64
		Tags    []tag
	}
	want := []row{{Name: "app-3"}, {Name: "app-2", Percent: 70}, {Name: "app-1", Percent: 30, Tags: []tag{{"old", "http://old-app"}}}}
	for _, routed := range []bool{false, true} {
		var got []row
		for _, r := range rows(service, revisions, routed) {
			got = append(got, row{r.Name, r.Percent, r.Tags})
		}
		if diff := cmp.Diff(slices.Clone(want), got); diff != "" {
			t.Errorf("routed %v (-want +got):\n%s", routed, diff)
		}
		want = want[1:]
	}
}
