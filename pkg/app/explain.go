package app

import (
	"context"
	"errors"
	"math"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/autoscaler"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/serving/revision"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
)

// explainTimeout bounds the time of requesting an explanation from the replica that decides.
const explainTimeout = 5 * time.Second

var (
	errNotDecided = errors.New("the autoscaler has not decided about this Revision yet; retry")
	errUndecided  = errors.New("no replica leads, so nothing decides about the scale of Revisions; retry")
	errDecider    = errors.New("the replica that decides about the scale of Revisions does not answer; retry")
)

// explainer explains the scale of Revisions, by asking the replica that decides about it.
type explainer struct {
	// autoscaler is nil if other replicas run it.
	autoscaler *autoscaler.Loop
	// leader returns the replica that decides, which transport reaches. Both are nil without other replicas.
	leader    func() (leader membership.Member, ok bool)
	transport http.RoundTripper
}

var _ revision.Explainer = &explainer{}

// newExplainer returns an explainer. autoscaler or r may be nil.
func newExplainer(autoscaler *autoscaler.Loop, r *replica) *explainer {
	e := &explainer{autoscaler: autoscaler}
	if r != nil {
		e.leader, e.transport = func() (membership.Member, bool) { return memberOf(r.election.Leader()) }, r.client
	}
	return e
}

// Explain implements revision.Explainer.
func (e *explainer) Explain(ctx context.Context, key types.NamespacedName, uid types.UID) (*servingv1.RevisionExplanation, error) {
	explanation, err := e.explain(ctx, key, uid)
	switch {
	case err == nil:
		return explanationOf(explanation), nil
	case errors.Is(err, autoscaler.ErrUnknown):
		return nil, errNotDecided
	case errors.Is(err, errNoLeader):
		return nil, errUndecided
	}
	klog.FromContext(ctx).Info("Failed to request the explanation of a scale", "revision", key, "reason", err.Error())
	return nil, errDecider
}

func (e *explainer) explain(ctx context.Context, key types.NamespacedName, uid types.UID) (*autoscaler.Explanation, error) {
	if e.autoscaler != nil {
		explanation, err := e.autoscaler.Explain(key, uid)
		if e.leader == nil || !errors.Is(err, autoscaler.ErrFollowing) {
			return explanation, err
		}
	}
	leader, ok := e.leader()
	if !ok {
		return nil, errNoLeader
	}
	ctx, cancel := context.WithTimeout(ctx, explainTimeout)
	defer cancel()
	return autoscaler.RequestExplanation(ctx, e.transport, leader, key, uid)
}

// explanationOf returns an explanation as an object of the API.
func explanationOf(e *autoscaler.Explanation) *servingv1.RevisionExplanation {
	out := &servingv1.RevisionExplanation{
		DesiredReplicas: e.Desired, ActualReplicas: e.Ready, Reason: e.Reason, Message: e.Message,
		Load: servingv1.RevisionLoad{
			Metric: "concurrency", StableAverage: quantity(e.Stable), PanicAverage: quantity(e.Panic), Target: quantity(e.Target), Capacity: quantity(e.Capacity),
			StableWindowSeconds: seconds(e.StableWindow), PanicWindowSeconds: seconds(e.PanicWindow), Panicking: e.Panicking, WaitingRequests: int64(e.Waiting),
		},
		Limits: servingv1.RevisionScaleLimits{
			MinScale: e.Min, MaxScale: e.Max, MaxScaleLimit: e.MaxLimit, InitialScale: e.Initial, ActivationScale: e.Activation, ScaleToZero: e.ScaleToZero,
			ScaleDownDelaySeconds: seconds(e.ScaleDownDelay), ScaleToZeroPodRetentionPeriodSeconds: seconds(e.Retention),
		},
		Decider: servingv1.RevisionDecider{Replica: e.Replica, SinceTime: metav1.NewTime(e.Since)},
	}
	if e.RPS {
		out.Load.Metric = "rps"
	}
	for _, k := range e.Keepers {
		out.LastReplica = append(out.LastReplica, servingv1.ScalingReason{Reason: k.Reason, Message: k.Message})
	}
	if a := e.Activated; a != nil {
		out.Activation = &servingv1.RevisionActivation{ReceivedTime: metav1.NewMicroTime(a.Received), Request: a.Request, Gateway: a.Gateway}
	}
	for i := range e.Decisions {
		d := &e.Decisions[i]
		out.Decisions = append(out.Decisions, servingv1.ScalingDecision{
			DecidedTime: metav1.NewMicroTime(d.At), From: d.From, To: d.To, Reason: d.Reason, Message: d.Message, Request: d.Request,
		})
	}
	for i := range e.ColdStarts {
		out.ColdStarts = append(out.ColdStarts, coldStartOf(&e.ColdStarts[i]))
	}
	return out
}

// coldStartOf returns a cold start with the phases that have ended.
func coldStartOf(c *autoscaler.ColdStart) servingv1.ColdStart {
	out := servingv1.ColdStart{
		ReceivedTime: metav1.NewMicroTime(c.Received), Request: c.Request, Gateway: c.Gateway, Instance: c.Backend, Outcome: "Waiting",
	}
	scaled := c.Scaled
	if !c.Created.IsZero() && scaled.After(c.Created) {
		// Deployments and Pods are watched separately.
		scaled = c.Created
	}
	last := c.Received
	for _, phase := range []struct {
		name    string
		end     time.Time
		outcome bool
	}{
		{name: "Scaled", end: scaled},
		{name: "Created", end: c.Created},
		{name: "Scheduled", end: c.Scheduled},
		{name: "Started", end: c.Started},
		{name: "Ready", end: c.Ready},
		{name: "Forwarded", end: c.Granted, outcome: true},
		{name: "Responded", end: c.Responded, outcome: true},
		{name: "Canceled", end: c.Canceled, outcome: true},
	} {
		if phase.end.IsZero() {
			continue
		}
		if phase.outcome {
			out.Outcome = phase.name
		}
		// The backend may have started before the request was received.
		if phase.end.Before(last) {
			continue
		}
		out.Phases = append(out.Phases, servingv1.ColdStartPhase{
			Name: phase.name, Milliseconds: phase.end.Sub(c.Received).Milliseconds() - last.Sub(c.Received).Milliseconds(),
		})
		last = phase.end
	}
	out.TotalMilliseconds = last.Sub(c.Received).Milliseconds()
	return out
}

// quantity returns a number with three decimal places.
func quantity(v float64) resource.Quantity {
	return *resource.NewMilliQuantity(int64(math.Round(v*1000)), resource.DecimalSI)
}

// seconds returns a duration in whole seconds, rounded up.
func seconds(d time.Duration) int64 { return int64(math.Ceil(d.Seconds())) }
