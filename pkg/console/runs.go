package console

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	"github.com/knative-apiserver/knative-apiserver/pkg/inspect"
)

// runsPage shows the redrives and replays of a namespace.
type runsPage struct {
	Namespace string
	Runs      []eventingv1alpha1.EventRun
	// More is true if there are more than these.
	More bool
}

// runs loads the page of redrives and replays.
func (c *Console) runs(ctx context.Context, r *http.Request) (any, error) {
	namespace := r.PathValue("namespace")
	list, err := c.knative.EventingV1alpha1().EventRuns(namespace).List(ctx, metav1.ListOptions{Limit: maxListed})
	if err != nil {
		return nil, err
	}
	return &runsPage{Namespace: namespace, Runs: list.Items, More: list.Continue != ""}, nil
}

// redrive has dead letters of one Trigger or Subscription delivered again, and shows the progress.
func (c *Console) redrive(ctx context.Context, r *http.Request) (string, error) {
	namespace := r.PathValue("namespace")
	rate, err := rateOf(r)
	if err != nil {
		return "", err
	}
	kind, name, _ := strings.Cut(r.PostFormValue("consumer"), " ")
	if kind != "Trigger" && kind != "Subscription" || name == "" {
		return "", apierrors.NewBadRequest("Choose the Trigger or Subscription whose dead letters are delivered again.")
	}
	to, err := inspect.ParseDestination(r.PostFormValue("destination"))
	if err != nil {
		return "", apierrors.NewBadRequest("The destination " + err.Error() + ".")
	}
	_, err = inspect.Redrive(ctx, c.knative, strings.ToLower(kind)+"s", namespace, name, &eventingv1alpha1.Redrive{Selector: selected(r), Rate: rate, Destination: to})
	return runsPath(namespace), err
}

// replayPage asks which archived events are delivered again.
type replayPage struct {
	Namespace string
	// Brokers are those with an archive. Triggers are all Triggers of these Brokers.
	Brokers, Triggers []string
}

// archives loads the page that asks for a replay.
func (c *Console) archives(ctx context.Context, r *http.Request) (any, error) {
	p := &replayPage{Namespace: r.PathValue("namespace")}
	brokers, err := c.knative.EventingV1().Brokers(p.Namespace).List(ctx, metav1.ListOptions{Limit: maxListed})
	if err != nil {
		return nil, err
	}
	archived := map[string]bool{}
	for i := range brokers.Items {
		broker := &brokers.Items[i]
		if broker.Status.Conditions.Get(eventingv1.BrokerConditionArchiveReady) != nil {
			p.Brokers = append(p.Brokers, broker.Name)
			archived[broker.Name] = true
		}
	}
	triggers, err := c.knative.EventingV1().Triggers(p.Namespace).List(ctx, metav1.ListOptions{Limit: maxListed})
	if err != nil {
		return nil, err
	}
	for i := range triggers.Items {
		if trigger := &triggers.Items[i]; archived[trigger.Spec.Broker] {
			p.Triggers = append(p.Triggers, trigger.Name)
		}
	}
	return p, nil
}

// replay has archived events of a Broker delivered again, and shows the progress.
func (c *Console) replay(ctx context.Context, r *http.Request) (string, error) {
	namespace := r.PathValue("namespace")
	asked := &eventingv1alpha1.Replay{Selector: selected(r), Trigger: r.PostFormValue("trigger")}
	var err error
	if asked.From, err = timeOf(r, "from"); err != nil {
		return "", err
	}
	if asked.To, err = timeOf(r, "to"); err != nil {
		return "", err
	}
	if asked.Rate, err = rateOf(r); err != nil {
		return "", err
	}
	broker := r.PostFormValue("broker")
	if broker == "" {
		return "", apierrors.NewBadRequest("Choose the Broker whose archived events are delivered again.")
	}
	_, err = inspect.Replay(ctx, c.knative, namespace, broker, asked)
	return runsPath(namespace), err
}

// deleteRun cancels a redrive or replay, or deletes one that has ended. A later one of the same name is not affected.
func (c *Console) deleteRun(ctx context.Context, r *http.Request) (string, error) {
	namespace, uid := r.PathValue("namespace"), types.UID(r.PostFormValue("uid"))
	return runsPath(namespace), c.knative.EventingV1alpha1().EventRuns(namespace).Delete(ctx, r.PathValue("name"), *metav1.NewPreconditionDeleteOptions(string(uid)))
}

func runsPath(namespace string) string { return "/namespaces/" + url.PathEscape(namespace) + "/runs" }

// selected returns the selector of a form's fields id, source and type; nil if it selects all events.
func selected(r *http.Request) *eventingv1alpha1.EventSelector {
	s := &eventingv1alpha1.EventSelector{ID: r.PostFormValue("id"), Source: r.PostFormValue("source"), Type: r.PostFormValue("type")}
	if s.ID == "" && s.Source == "" && s.Type == "" {
		return nil
	}
	return s
}

// rateOf returns the field rate of a form, in events per second; nil if it is empty.
func rateOf(r *http.Request) (*int32, error) {
	text := r.PostFormValue("rate")
	if text == "" {
		return nil, nil
	}
	rate, err := strconv.ParseInt(text, 10, 32)
	if err != nil || rate < 1 {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("Events per second must be a number of at least 1, not '%.100s'.", text))
	}
	return new(int32(rate)), nil
}

// timeOf returns a field of a form with a date and a time of day, in the time zone of the console, which runs on the machine of the user; nil
// if it is empty.
func timeOf(r *http.Request, field string) (*metav1.Time, error) {
	text := r.PostFormValue(field)
	if text == "" {
		return nil, nil
	}
	// Browsers leave out seconds that are zero (WHATWG HTML, 2.3.5.5).
	for _, layout := range []string{"2006-01-02T15:04", "2006-01-02T15:04:05"} {
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil { //nolint:gosmopolitan // the user enters local time
			return new(metav1.NewTime(t)), nil
		}
	}
	return nil, apierrors.NewBadRequest(fmt.Sprintf("The field '%s' must be a date and a time such as 2026-01-02T15:04:05, not '%.100s'.", field, text))
}

// source describes which events a redrive or replay delivers, and to which objects.
func source(run *eventingv1alpha1.EventRun) string {
	target := run.Spec.Target.Kind + " " + run.Spec.Target.Name
	replay := run.Spec.Replay
	switch {
	case replay == nil:
		return "dead letters of " + target
	case run.Spec.Target.Kind == "Broker":
		return "archive of " + target
	}
	return "archive of Broker " + replay.Broker + ", for " + target
}
