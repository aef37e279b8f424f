package deadletter

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/ptr"

	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
)

// letters has the dead letter x-1, and records the requests.
type letters struct {
	selection *Selection
	limit     int64
	position  string
	deleted   []string
}

// Get implements DeadLetters.
func (*letters) Get(_ context.Context, namespace, name string) (*eventingv1alpha1.DeadLetter, error) {
	if namespace != "ns" || name != "x-1" {
		return nil, apierrors.NewNotFound(eventingv1alpha1.Resource("deadletters"), name)
	}
	return &eventingv1alpha1.DeadLetter{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "uid", ResourceVersion: "1"}}, nil
}

// List implements DeadLetters.
func (l *letters) List(_ context.Context, selection *Selection, limit int64, position string) (*eventingv1alpha1.DeadLetterList, error) {
	l.selection, l.limit, l.position = selection, limit, position
	return &eventingv1alpha1.DeadLetterList{}, nil
}

// Delete implements DeadLetters.
func (l *letters) Delete(_ context.Context, namespace, name string) error {
	l.deleted = append(l.deleted, namespace+"/"+name)
	return nil
}

// DeleteAll implements DeadLetters.
func (l *letters) DeleteAll(_ context.Context, selection *Selection) error {
	l.selection = selection
	l.deleted = append(l.deleted, selection.Namespace+"/*")
	return nil
}

// TestREST passes requests on, once dead letters are set.
func TestREST(t *testing.T) {
	r, ctx := NewREST(&Late{}), request.WithNamespace(t.Context(), "ns")
	if _, err := r.List(ctx, nil); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("without dead letters: %v", err)
	}
	source := &letters{}
	r.dead.Set(source)
	if _, err := r.Get(ctx, "x-2", nil); !apierrors.IsNotFound(err) {
		t.Errorf("get of another name: %v", err)
	}
	if got, err := r.Get(ctx, "x-1", nil); err != nil || got.(*eventingv1alpha1.DeadLetter).UID != "uid" {
		t.Errorf("got %v: %v", got, err)
	}
	field := fields.OneTermEqualSelector("event.id", "1")
	if _, err := r.List(ctx, &metainternalversion.ListOptions{FieldSelector: field, Limit: 7, Continue: "p"}); err != nil || source.limit != 7 || source.position != "p" || source.selection.Fields != field || source.selection.Namespace != "ns" {
		t.Errorf("listed %+v: %v", source, err)
	}
	matching, other := &eventingv1alpha1.DeadLetter{Event: eventingv1alpha1.DeadLetterEvent{ID: "1"}}, &eventingv1alpha1.DeadLetter{}
	if !source.selection.Matches(matching) || source.selection.Matches(other) {
		t.Error("the selection matches others")
	}
}

// TestDelete obeys preconditions, admission and dry runs.
func TestDelete(t *testing.T) {
	source := &letters{}
	r, ctx := NewREST(&Late{}), request.WithNamespace(t.Context(), "ns")
	r.dead.Set(source)
	forbidden := func(context.Context, runtime.Object) error { return errors.New("forbidden") }
	for name, try := range map[string]func() error{
		"not found": func() error { _, _, err := r.Delete(ctx, "x-2", nil, &metav1.DeleteOptions{}); return err },
		"UID": func() error {
			_, _, err := r.Delete(ctx, "x-1", nil, &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(types.UID("other"))}})
			return err
		},
		"resource version": func() error {
			_, _, err := r.Delete(ctx, "x-1", nil, &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: ptr.To("2")}})
			return err
		},
		"admission": func() error { _, _, err := r.Delete(ctx, "x-1", forbidden, &metav1.DeleteOptions{}); return err },
		"admission of a collection": func() error {
			_, err := r.DeleteCollection(ctx, forbidden, &metav1.DeleteOptions{}, &metainternalversion.ListOptions{})
			return err
		},
	} {
		if err := try(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	dry := &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}
	if _, _, err := r.Delete(ctx, "x-1", nil, dry); err != nil {
		t.Error(err)
	}
	if _, err := r.DeleteCollection(ctx, nil, dry, nil); err != nil {
		t.Error(err)
	}
	if len(source.deleted) > 0 {
		t.Errorf("deleted %v", source.deleted)
	}
	if _, now, err := r.Delete(ctx, "x-1", nil, &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(types.UID("uid"))}}); err != nil || !now {
		t.Error(err)
	}
	if _, err := r.DeleteCollection(ctx, nil, nil, nil); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"ns/x-1", "ns/*"}, source.deleted); diff != "" {
		t.Error(diff)
	}
}

// TestTable prints a dead letter.
func TestTable(t *testing.T) {
	d := &eventingv1alpha1.DeadLetter{
		ObjectMeta: metav1.ObjectMeta{Name: "x-1", CreationTimestamp: metav1.NewTime(time.Now().Add(-time.Hour))},
		Consumer:   eventingv1alpha1.DeadLetterObject{Kind: "Trigger", Name: "t"}, Stream: eventingv1alpha1.DeadLetterObject{Kind: "Broker", Namespace: "other", Name: "b"},
		Subscriber: "http://a/", Attempts: 3, LastCode: 503, LastError: "503", Event: eventingv1alpha1.DeadLetterEvent{ID: "1", Type: "t", Source: "/s"},
	}
	unanswered := d.DeepCopy()
	unanswered.LastCode = 0
	table, err := NewREST(&Late{}).ConvertToTable(t.Context(), &eventingv1alpha1.DeadLetterList{ListMeta: metav1.ListMeta{Continue: "p"}, Items: []eventingv1alpha1.DeadLetter{*d, *unanswered}}, nil)
	if err != nil || table.Continue != "p" || len(table.Rows) != 2 {
		t.Fatalf("%+v: %v", table, err)
	}
	want := []any{"x-1", "1", "t", "Trigger/t", "http://a/", int64(3), int64(503), "60m", "/s", "Broker/other/b", "503"}
	if diff := cmp.Diff(want, table.Rows[0].Cells); diff != "" {
		t.Error(diff)
	}
	if code := table.Rows[1].Cells[6]; code != nil {
		t.Errorf("code without a response: %v", code)
	}
}
