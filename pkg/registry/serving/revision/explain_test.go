package revision

import (
	"context"
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// oneRevision is a store of one Revision.
type oneRevision struct{}

func (oneRevision) Get(_ context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	if name != "hello-00001" {
		return nil, apierrors.NewNotFound(servingv1.Resource("revisions"), name)
	}
	return &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: "uid"}}, nil
}

// explains is an Explainer with an error, or nil.
type explains struct{ err error }

func (e explains) Explain(_ context.Context, revision types.NamespacedName, uid types.UID) (*servingv1.RevisionExplanation, error) {
	return &servingv1.RevisionExplanation{Message: revision.String() + " " + string(uid)}, e.err
}

// TestExplain checks the object, and the errors without a Revision or an explanation.
func TestExplain(t *testing.T) {
	late := &LateExplainer{}
	e := newExplainREST(oneRevision{}, late)
	get := func(name string) (runtime.Object, error) { return e.Get(t.Context(), name, &metav1.GetOptions{}) }
	if _, err := get("hello-00001"); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("without an explainer: %v", err)
	}
	late.Set(explains{})
	obj, err := get("hello-00001")
	if err != nil {
		t.Fatal(err)
	}
	if got := obj.(*servingv1.RevisionExplanation); got.Name != "hello-00001" || got.Namespace != "default" || got.UID != "uid" || got.Message != "default/hello-00001 uid" {
		t.Errorf("%+v", got)
	}
	table, err := e.ConvertToTable(t.Context(), obj, nil)
	if err != nil || len(table.Rows) != 1 || len(table.Rows[0].Cells) != len(table.ColumnDefinitions) {
		t.Errorf("%+v, %v", table, err)
	}
	if _, err := get("none"); !apierrors.IsNotFound(err) {
		t.Errorf("without a Revision: %v", err)
	}
	late.Set(explains{errors.New("retry")})
	if _, err := get("hello-00001"); !apierrors.IsServiceUnavailable(err) || err.Error() != "retry" {
		t.Errorf("without an explanation: %v", err)
	}
}
