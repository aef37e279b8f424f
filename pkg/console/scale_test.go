package console

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// TestChart draws steps between the first decision and now.
func TestChart(t *testing.T) {
	if c := newChart(nil, time.Now()); c != nil {
		t.Errorf("without decisions the chart is %+v", c)
	}
	began := time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC)
	at := func(seconds int) metav1.MicroTime {
		return metav1.NewMicroTime(began.Add(time.Duration(seconds) * time.Second))
	}
	// Newest first, as in the API. The clock of the server is ahead.
	c := newChart([]servingv1.ScalingDecision{
		{DecidedTime: at(200), From: 4, To: 0}, {DecidedTime: at(50), From: 1, To: 4}, {DecidedTime: at(0), From: 0, To: 1},
	}, began.Add(100*time.Second))
	width, height := c.Right-c.Left, c.Bottom-c.Top
	y := func(instances int) int { return c.Bottom - height*instances/4 }
	want := []point{
		{c.Left, y(0)}, {c.Left, y(0)}, {c.Left, y(1)}, {c.Left + width/2, y(1)}, {c.Left + width/2, y(4)}, {c.Right, y(4)}, {c.Right, y(0)}, {c.Right, y(0)},
	}
	if diff := cmp.Diff(want, c.Points); diff != "" {
		t.Errorf("points (-want +got):\n%s", diff)
	}
	if c.Maximum != 4 || len(c.Decisions) != 3 || len(c.Ticks) != 5 {
		t.Errorf("the chart has a maximum of %d, %d decisions and %d ticks", c.Maximum, len(c.Decisions), len(c.Ticks))
	}
}

// TestChartOfThousands has few ticks, and at least one.
func TestChartOfThousands(t *testing.T) {
	for _, instances := range []int32{0, 1, 1000, 1 << 30} {
		c := newChart([]servingv1.ScalingDecision{{To: instances}}, time.Now())
		if len(c.Ticks) < 2 || len(c.Ticks) > chartTicks+1 {
			t.Errorf("%d instances have %d ticks", instances, len(c.Ticks))
		}
	}
}
