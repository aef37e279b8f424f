package console

import (
	"context"
	"net/http"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/inspect"
)

// scalePage explains the scale of a Revision.
type scalePage struct {
	Namespace, Name string
	*servingv1.RevisionExplanation
	Chart *chart
}

// scale loads the page of a Revision's scale.
func (c *Console) scale(ctx context.Context, r *http.Request) (any, error) {
	p := &scalePage{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")}
	var err error
	if p.RevisionExplanation, err = inspect.Explanation(ctx, c.knative, p.Namespace, p.Name); err != nil {
		return nil, err
	}
	p.Chart = newChart(p.Decisions, time.Now())
	return p, nil
}

// The size of a chart, in units of its SVG.
const (
	chartWidth, chartHeight = 640, 200
	chartLeft, chartTop     = 40, 16
	chartRight, chartBottom = 16, 28
	// chartTicks is the number of horizontal lines at most.
	chartTicks = 5
)

// chart is the number of instances over time, as steps.
type chart struct {
	Width, Height, Left, Right, Top, Bottom int
	// Points are the corners of the steps, in SVG units.
	Points []point
	// Decisions are the decisions at the corners.
	Decisions []mark
	Ticks     []tick
	// From and To are the ends of the time axis.
	From, To metav1.Time
	// Maximum is the greatest number of instances.
	Maximum int32
}

// point is a place in a chart.
type point struct{ X, Y int }

// mark is a decision in a chart.
type mark struct {
	point
	servingv1.ScalingDecision
}

// tick is a horizontal line.
type tick struct {
	Y     int
	Label int32
}

// newChart returns the chart of decisions, which are listed newest first, until now. It returns nil without decisions.
func newChart(decisions []servingv1.ScalingDecision, now time.Time) *chart {
	if len(decisions) == 0 {
		return nil
	}
	ordered := slices.Clone(decisions)
	slices.Reverse(ordered)
	c := &chart{
		Width: chartWidth, Height: chartHeight, Left: chartLeft, Right: chartWidth - chartRight, Top: chartTop, Bottom: chartHeight - chartBottom,
		From: metav1.NewTime(ordered[0].DecidedTime.Time), To: metav1.NewTime(now), Maximum: 1,
	}
	for i := range ordered {
		c.Maximum = max(c.Maximum, ordered[i].From, ordered[i].To)
	}
	// A second at least, also if the clocks of the server and of this machine differ.
	span := max(now.Sub(c.From.Time), time.Second)
	x := func(t time.Time) int {
		passed := min(max(t.Sub(c.From.Time), 0), span)
		return c.Left + int(float64(c.Right-c.Left)*float64(passed)/float64(span))
	}
	y := func(instances int32) int {
		return c.Bottom - int(float64(c.Bottom-c.Top)*float64(instances)/float64(c.Maximum))
	}
	c.Points = append(c.Points, point{c.Left, y(ordered[0].From)})
	for i := range ordered {
		at := x(ordered[i].DecidedTime.Time)
		c.Points = append(c.Points, point{at, y(ordered[i].From)}, point{at, y(ordered[i].To)})
		c.Decisions = append(c.Decisions, mark{point{at, y(ordered[i].To)}, ordered[i]})
	}
	c.Points = append(c.Points, point{c.Right, y(ordered[len(ordered)-1].To)})
	step := int64(c.Maximum)/chartTicks + 1
	for n := int64(0); n <= int64(c.Maximum); n += step {
		c.Ticks = append(c.Ticks, tick{y(int32(n)), int32(n)})
	}
	return c
}
