package noloss

import (
	"context"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestRollout replaces the Revision, and the previous one scales to zero (serving 7.3).
func TestRollout(t *testing.T) {
	t.Parallel()
	s := newStage(t, instances, 0)
	l := s.startLoad(t, clients)
	l.long(t, instances)
	s.patch(t, `[{"op": "replace", "path": "/spec/template/spec/containers/0/env/0/value", "value": "2"}]`)
	s.awaitReady(t, 2)
	eventually(t, "the new Revision answers", func(context.Context) error {
		if answers := l.answered("Hello 2!"); answers < someAnswers {
			return fmt.Errorf("it has answered %d times", answers)
		}
		return nil
	})
	// min-scale applies to Revisions with traffic.
	s.awaitPods(t, 1, 0)
	l.awaitMore(t)
	l.end(t)
}

// TestScaleDown checks that the autoscaler removes backends after the load drops.
func TestScaleDown(t *testing.T) {
	t.Parallel()
	const more, fewer = 4, 2
	s := newStage(t, 1, 1)
	l := s.startLoad(t, 1)
	many := s.startLoad(t, clients)
	eventually(t, "the Revision has more instances", func(ctx context.Context) error {
		pods, err := s.pods(ctx, 1)
		if err == nil && len(pods) < more {
			err = fmt.Errorf("there are %d", len(pods))
		}
		return err
	})
	many.awaitMore(t)
	many.end(t)
	eventually(t, "the Revision has fewer instances", func(ctx context.Context) error {
		pods, err := s.pods(ctx, 1)
		if err == nil && len(pods) > fewer {
			err = fmt.Errorf("there are %d", len(pods))
		}
		return err
	})
	l.awaitMore(t)
	l.end(t)
}

// patch changes the Service.
func (s *stage) patch(t *testing.T, patch string) {
	t.Helper()
	if _, err := s.Admin.Knative.ServingV1().Services(s.namespace).Patch(t.Context(), name, types.JSONPatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}
