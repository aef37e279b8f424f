package revision

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// fakeRevisions holds Revisions by name.
type fakeRevisions map[string]*servingv1.Revision

func (f fakeRevisions) Get(_ context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	if r, ok := f[name]; ok {
		return r, nil
	}
	return nil, apierrors.NewNotFound(servingv1.Resource("revisions"), name)
}

func TestScale(t *testing.T) {
	meta := metav1.ObjectMeta{Name: "hello-00001", Namespace: "ns", UID: "u", ResourceVersion: "7", CreationTimestamp: metav1.Unix(1, 0)}
	labelled := meta
	labelled.Labels = map[string]string{"a": "b"}
	tests := map[string]struct {
		status          servingv1.RevisionStatus
		desired, actual int32
	}{
		"nothing known yet": {},
		"scaling up":        {status: servingv1.RevisionStatus{DesiredReplicas: ptr.To[int32](3), ActualReplicas: ptr.To[int32](1)}, desired: 3, actual: 1},
		"going to zero":     {status: servingv1.RevisionStatus{DesiredReplicas: ptr.To[int32](0), ActualReplicas: ptr.To[int32](2)}, actual: 2},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := newScaleREST(fakeRevisions{"hello-00001": {ObjectMeta: labelled, Status: test.status}})
			got, err := s.Get(t.Context(), "hello-00001", &metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			want := &autoscalingv1.Scale{
				ObjectMeta: meta,
				Spec:       autoscalingv1.ScaleSpec{Replicas: test.desired},
				Status:     autoscalingv1.ScaleStatus{Replicas: test.actual, Selector: "serving.knative.dev/revision=hello-00001"},
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			table, err := s.ConvertToTable(t.Context(), got, nil)
			if err != nil {
				t.Fatal(err)
			}
			cells := table.Rows[0].Cells[:3]
			if diff := cmp.Diff([]any{"hello-00001", int64(test.desired), int64(test.actual)}, cells); diff != "" {
				t.Errorf("table (-want +got):\n%s", diff)
			}
		})
	}
}

func TestScaleOfNoRevision(t *testing.T) {
	_, err := newScaleREST(fakeRevisions{}).Get(t.Context(), "none", &metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("got %v, want NotFound", err)
	}
}
