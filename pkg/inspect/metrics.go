package inspect

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned"
)

// Sample is the metrics of a server at a time.
type Sample struct {
	at       time.Time
	families map[string]*dto.MetricFamily
}

// Metrics reads /metrics. It fails with Forbidden without the permission to get this nonResourceURL.
func Metrics(ctx context.Context, client versioned.Interface, now func() time.Time) (*Sample, error) {
	stream, err := client.Discovery().RESTClient().Get().AbsPath("/metrics").Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	return parseSample(stream, now())
}

func parseSample(from io.Reader, at time.Time) (*Sample, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(from)
	if err != nil {
		return nil, fmt.Errorf("parse /metrics: %w", err)
	}
	maps.DeleteFunc(families, func(name string, _ *dto.MetricFamily) bool { return !strings.HasPrefix(name, "knative_") })
	return &Sample{at: at, families: families}, nil
}

// selector selects the series with these labels.
type selector map[string]string

// sum returns the sum of the values of a metric over the selected series, and its number of observations for a histogram.
func (s *Sample) sum(name string, labels selector) (total, count float64) {
	for _, m := range s.families[name].GetMetric() {
		if !labels.match(m.GetLabel()) {
			continue
		}
		switch {
		case m.Counter != nil:
			total += m.GetCounter().GetValue()
		case m.Gauge != nil:
			total += m.GetGauge().GetValue()
		case m.Histogram != nil:
			total += m.GetHistogram().GetSampleSum()
			count += float64(m.GetHistogram().GetSampleCount())
		default:
			total += m.GetUntyped().GetValue()
		}
	}
	return total, count
}

func (s selector) match(labels []*dto.LabelPair) bool {
	for name, value := range s {
		if !slices.ContainsFunc(labels, func(l *dto.LabelPair) bool { return l.GetName() == name && l.GetValue() == value }) {
			return false
		}
	}
	return true
}

// Missing returns why the result of Metrics has no metrics of this server, which is empty if it has them. Other failures remain errors.
func Missing(s *Sample, err error) (reason string, _ error) {
	switch {
	case apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err):
		return "the permission to get the nonResourceURL /metrics is required: " + err.Error(), nil
	case err != nil:
		return "", err
	case len(s.families) == 0:
		return "/metrics at this address belongs to the host cluster, without the metrics of this server's replicas", nil
	}
	return "", nil
}

// Interval is two samples of which rates are computed.
type Interval struct{ From, To *Sample }

// rate returns the increase of a counter per second. A counter that has been reset increases from zero.
func (i *Interval) rate(name string, labels selector) float64 {
	before, _ := i.From.sum(name, labels)
	after, _ := i.To.sum(name, labels)
	return perSecond(before, after, i.To.at.Sub(i.From.at))
}

func perSecond(before, after float64, elapsed time.Duration) float64 {
	if after < before {
		before = 0
	}
	if elapsed <= 0 {
		return 0
	}
	return (after - before) / elapsed.Seconds()
}

// mean returns the mean of the observations of a histogram, and false without observations.
func (i *Interval) mean(name string, labels selector) (mean float64, ok bool) {
	sumBefore, countBefore := i.From.sum(name, labels)
	sumAfter, countAfter := i.To.sum(name, labels)
	if countAfter < countBefore {
		sumBefore, countBefore = 0, 0
	}
	if countAfter == countBefore {
		return 0, false
	}
	return (sumAfter - sumBefore) / (countAfter - countBefore), true
}
