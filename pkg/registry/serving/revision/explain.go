package revision

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/registry/rest"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry"
)

// Explainer explains the scale of Revisions.
type Explainer interface {
	// Explain returns the explanation of the Revision with a UID, without metadata. The message of its error is for users: the explanation
	// is not available at the moment.
	Explain(ctx context.Context, revision types.NamespacedName, uid types.UID) (*servingv1.RevisionExplanation, error)
}

// LateExplainer is an Explainer that is set after the API is served, or never. The zero value has none.
type LateExplainer = registry.Late[Explainer]

// errNoExplainer is the error without an explainer.
var errNoExplainer = errors.New("no autoscaler is known to this server; it runs with the component controllers")

// explainREST is the subresource explain.
type explainREST struct {
	rest.TableConvertor
	revisions rest.Getter
	explainer *LateExplainer
}

var (
	_ rest.Getter         = &explainREST{}
	_ rest.TableConvertor = &explainREST{}
)

func newExplainREST(revisions rest.Getter, explainer *LateExplainer) *explainREST {
	type explanation = *servingv1.RevisionExplanation
	return &explainREST{revisions: revisions, explainer: explainer, TableConvertor: registry.NewTableConvertor(
		registry.NameColumn[explanation](),
		registry.Column[explanation]{Name: "Desired", Type: "integer", Description: "The number of instances that the autoscaler requests.", Value: func(e explanation) any {
			return int64(e.DesiredReplicas)
		}},
		registry.Column[explanation]{Name: "Actual", Type: "integer", Description: "The number of ready instances.", Value: func(e explanation) any {
			return int64(e.ActualReplicas)
		}},
		registry.Column[explanation]{Name: "Reason", Type: "string", Description: "What decided about the number of instances.", Value: func(e explanation) any {
			return e.Reason
		}},
		registry.Column[explanation]{Name: "Message", Type: "string", Description: "The reason in a sentence.", Value: func(e explanation) any {
			return e.Message
		}},
	)}
}

// New returns an empty object.
func (*explainREST) New() runtime.Object { return &servingv1.RevisionExplanation{} }

// Destroy does nothing: the resource Revisions owns the store.
func (*explainREST) Destroy() {}

// Get explains the scale of a Revision.
func (e *explainREST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	revision, err := registry.GetAs[*servingv1.Revision](ctx, e.revisions, name, options)
	if err != nil {
		return nil, err
	}
	explainer := e.explainer.Load()
	if explainer == nil {
		return nil, apierrors.NewServiceUnavailable(errNoExplainer.Error())
	}
	explanation, err := (*explainer).Explain(ctx, types.NamespacedName{Namespace: revision.Namespace, Name: revision.Name}, revision.UID)
	if err != nil {
		return nil, apierrors.NewServiceUnavailable(err.Error())
	}
	explanation.ObjectMeta = metav1.ObjectMeta{
		Name: revision.Name, Namespace: revision.Namespace, UID: revision.UID, CreationTimestamp: revision.CreationTimestamp,
	}
	return explanation, nil
}
