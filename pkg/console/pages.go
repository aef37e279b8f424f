package console

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	"github.com/knative-apiserver/knative-apiserver/pkg/inspect"
)

// page is a kind of page.
type page struct {
	// Title and Template make the page from what load returns.
	Title, Template string
	// load reads what the page shows. Problems that concern a part of the page only are in what it returns.
	load func(ctx context.Context, r *http.Request) (any, error)
	// watches are the kinds whose changes change the page.
	watches []watched
	// rated is true if the page shows rates, which change all the time.
	rated bool
}

// pages returns the pages by the pattern of their paths.
func (c *Console) pages() map[string]*page {
	return map[string]*page{
		"/namespaces/{namespace}":                        {Title: "Event flow", Template: "graph", load: c.graph, watches: eventingKinds, rated: true},
		"/namespaces/{namespace}/services":               {Title: "Services", Template: "services", load: c.services, watches: servingKinds},
		"/namespaces/{namespace}/services/{name}":        {Title: "Service", Template: "service", load: c.service, watches: servingKinds},
		"/namespaces/{namespace}/deadletters":            {Title: "Dead letters", Template: "deadletters", load: c.deadLetters},
		"/namespaces/{namespace}/deadletters/{name}":     {Title: "Dead letter", Template: "deadletter", load: c.deadLetter},
		"/namespaces/{namespace}/events":                 {Title: "Find an event", Template: "events", load: c.events},
		"/namespaces/{namespace}/runs":                   {Title: "Redrives and replays", Template: "runs", load: c.runs, watches: runKinds},
		"/namespaces/{namespace}/replay":                 {Title: "Replay archived events", Template: "replay", load: c.archives},
		"/namespaces/{namespace}/revisions/{name}/scale": {Title: "Scale", Template: "scale", load: c.scale, watches: servingKinds},
	}
}

// action does what a form asks for, and returns the path of the page to show next.
type action func(ctx context.Context, r *http.Request) (next string, err error)

// actions returns the actions by the pattern of the paths of their forms.
func (c *Console) actions() map[string]action {
	return map[string]action{
		"/namespaces/{namespace}/deadletters/{name}/delete": c.deleteDeadLetter,
		"/namespaces/{namespace}/redrive":                   c.redrive,
		"/namespaces/{namespace}/replay":                    c.replay,
		"/namespaces/{namespace}/runs/{name}/delete":        c.deleteRun,
	}
}

// view is what the layout of a page shows.
type view struct {
	Title, Namespace string
	// Namespaces are those that the user may list.
	Namespaces []string
	// Path is the path of the page, with its query.
	Path string
	// Live is true if the page changes with its objects.
	Live bool
	// Logs is true if the page shows the logs of its Service.
	Logs bool
	// Links lead to the pages of the namespace.
	Links []link
	// Content is the page itself.
	Content template.HTML
}

// link is an entry of the navigation.
type link struct {
	Title, Path string
	// Current is true for the page that is shown.
	Current bool
}

// links returns the navigation of a namespace.
func links(namespace, current string) []link {
	base := "/namespaces/" + url.PathEscape(namespace)
	all := []link{{Title: "Event flow", Path: base}, {Title: "Services", Path: base + "/services"}, {Title: "Find an event", Path: base + "/events"}, {Title: "Dead letters", Path: base + "/deadletters"}, {Title: "Redrives and replays", Path: base + "/runs"}}
	for i := range all {
		all[i].Current = all[i].Path == current
	}
	return all
}

// functions are the functions of templates.
var functions = template.FuncMap{
	"age":      age,
	"clock":    timeOfDay,
	"ready":    ready,
	"link":     objectLink,
	"lower":    strings.ToLower,
	"duration": inspect.Milliseconds,
	"failure":  inspect.Failure,
	"consumer": inspect.Consumer,
	"source":   func(run eventingv1alpha1.EventRun) string { return source(&run) },
	"queued":   func(run eventingv1alpha1.EventRun) string { return inspect.Queued(&run) },
	"message":  func(run eventingv1alpha1.EventRun) string { return inspect.RunMessage(&run) },
	"decimal":  func(q resource.Quantity) string { return inspect.Decimal(&q) },
}

// start redirects to the first namespace, or the one that the user chose.
func (c *Console) start(w http.ResponseWriter, r *http.Request) {
	namespace := r.URL.Query().Get("namespace")
	if namespace == "" {
		namespace = c.namespace
	}
	http.Redirect(w, r, "/namespaces/"+url.PathEscape(namespace), http.StatusSeeOther)
}

// show returns the handler of a page.
func (c *Console) show(p *page) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, status := c.render(r.Context(), p, r)
		title := inspect.Join(" ", p.Title, r.PathValue("name"))
		c.write(w, r, &view{Title: title, Live: len(p.watches) > 0, Logs: p.Template == "service" && status == http.StatusOK, Content: content}, status)
	})
}

// handle returns the handler of a form.
func (c *Console) handle(act action) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		next, err := act(r.Context(), r)
		if err == nil {
			http.Redirect(w, r, next, http.StatusSeeOther)
			return
		}
		content, status := c.problem(err)
		c.write(w, r, &view{Title: "Refused", Content: content}, status)
	})
}

// write responds with the layout around the content of a view. It sets the fields that all pages of a namespace have.
func (c *Console) write(w http.ResponseWriter, r *http.Request, v *view, status int) {
	v.Namespace, v.Namespaces, v.Path = r.PathValue("namespace"), c.namespaces(r.Context()), r.URL.RequestURI()
	v.Links = links(v.Namespace, r.URL.EscapedPath())
	var out bytes.Buffer
	if err := c.templates.ExecuteTemplate(&out, "layout.html", v); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	w.Write(out.Bytes()) //nolint:errcheck // the browser has closed the connection
}

// render returns the content of a page, with the status of its response.
func (c *Console) render(ctx context.Context, p *page, r *http.Request) (template.HTML, int) {
	data, err := p.load(ctx, r)
	if err != nil {
		return c.problem(err)
	}
	content, err := c.execute(p.Template, data)
	if err != nil {
		return content, http.StatusInternalServerError
	}
	return content, http.StatusOK
}

// problem returns the content about an error of the API, with the status of its response.
func (c *Console) problem(err error) (template.HTML, int) {
	content, _ := c.execute("problem", explain(err))
	return content, statusOf(err)
}

// execute returns the output of a template, or the error of the template as text.
func (c *Console) execute(name string, data any) (template.HTML, error) {
	var out bytes.Buffer
	if err := c.templates.ExecuteTemplate(&out, name+".html", data); err != nil {
		return template.HTML(template.HTMLEscapeString(err.Error())), err
	}
	return template.HTML(out.String()), nil //nolint:gosec // the template has escaped it
}

// namespaces returns the namespaces that the user may list, sorted; none without that right.
func (c *Console) namespaces(ctx context.Context) []string {
	list, err := c.core.CoreV1().Namespaces().List(ctx, metav1.ListOptions{Limit: maxListed})
	if err != nil {
		return nil
	}
	names := make([]string, len(list.Items))
	for i := range list.Items {
		names[i] = list.Items[i].Name
	}
	slices.Sort(names)
	return names
}

// explain returns an error of the API as a sentence for the user.
func explain(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return status.Status().Message
	}
	return err.Error()
}

// statusOf returns the HTTP status of an error of the API, and 502 for others.
func statusOf(err error) int {
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Code > 0 {
		return int(status.Status().Code)
	}
	return http.StatusBadGateway
}

// objectLink returns the path of the page of an object; empty if there is none.
func objectLink(n *inspect.GraphNode) string {
	if n == nil || n.Kind != "Service" {
		return ""
	}
	return "/namespaces/" + url.PathEscape(n.Namespace) + "/services/" + url.PathEscape(n.Name)
}

// readiness is the condition Ready of an object.
type readiness struct {
	// Status is True, False or Unknown. Reason and Message explain it unless it is True.
	Status, Reason, Message string
}

// ready returns the condition Ready.
func ready(conditions duckv1.Conditions) readiness {
	c := conditions.Get(duckv1.ConditionReady)
	if c == nil {
		return readiness{Status: "Unknown", Reason: "NotReconciled", Message: "The controllers have not reported about it yet."}
	}
	return readiness{Status: string(c.Status), Reason: c.Reason, Message: c.Message}
}

// age returns the time since the creation of an object, such as 5m.
func age(t metav1.Time) string { return duration.HumanDuration(time.Since(t.Time)) }

// timeOfDay returns the time of a day, with milliseconds.
func timeOfDay(t any) string {
	switch t := t.(type) {
	case metav1.MicroTime:
		return t.Local().Format("15:04:05.000")
	case *metav1.MicroTime:
		return t.Local().Format("15:04:05.000")
	case metav1.Time:
		return t.Local().Format("15:04:05")
	}
	return fmt.Sprint(t)
}
