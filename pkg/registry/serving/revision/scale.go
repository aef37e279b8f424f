package revision

import (
	"context"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/identity"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry"
)

// instanceLabelKey is the label of a Revision's Pods whose value is the Revision's name.
const instanceLabelKey = servingv1.GroupName + "/revision"

// NewStorage returns the storage of Revisions and of their subresources, by resource path.
func NewStorage(controllers identity.Controllers, settings func() servingv1.Settings, logs LogOptions, explainer *LateExplainer, typer runtime.ObjectTyper, getter generic.RESTOptionsGetter) (map[string]rest.Storage, error) {
	paths, err := registry.NewStorage(Resource(controllers, settings), typer, getter)
	if err != nil {
		return nil, err
	}
	paths["revisions/scale"] = newScaleREST(paths["revisions"].(rest.Getter))
	paths["revisions/log"] = &logREST{LogOptions: logs, revisions: paths["revisions"].(revisionStore)}
	paths["revisions/explain"] = newExplainREST(paths["revisions"].(rest.Getter), explainer)
	return paths, nil
}

// scaleREST serves the number of backends of a Revision as autoscaling/v1 Scale. It is read-only: the autoscaler sets the
// number, within the bounds of the Revision's annotations.
type scaleREST struct {
	rest.TableConvertor
	revisions rest.Getter
}

var (
	_ rest.Getter                   = &scaleREST{}
	_ rest.GroupVersionKindProvider = &scaleREST{}
	_ rest.TableConvertor           = &scaleREST{}
)

func newScaleREST(revisions rest.Getter) *scaleREST {
	type scale = *autoscalingv1.Scale
	return &scaleREST{revisions: revisions, TableConvertor: registry.NewTableConvertor(
		registry.NameColumn[scale](),
		registry.Column[scale]{Name: "Desired", Type: "integer", Description: autoscalingv1.ScaleSpec{}.SwaggerDoc()["replicas"], Value: func(s scale) any {
			return int64(s.Spec.Replicas)
		}},
		registry.Column[scale]{Name: "Available", Type: "integer", Description: autoscalingv1.ScaleStatus{}.SwaggerDoc()["replicas"], Value: func(s scale) any {
			return int64(s.Status.Replicas)
		}},
		registry.AgeColumn[scale](),
	)}
}

// GroupVersionKind returns the kind Scale, which belongs to another group than the resource.
func (*scaleREST) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return autoscalingv1.SchemeGroupVersion.WithKind("Scale")
}

// New returns an empty object.
func (*scaleREST) New() runtime.Object { return &autoscalingv1.Scale{} }

// Destroy does nothing: the resource Revisions owns the store.
func (*scaleREST) Destroy() {}

// Get reads the scale of a Revision.
func (s *scaleREST) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	obj, err := s.revisions.Get(ctx, name, options)
	if err != nil {
		return nil, err
	}
	return scaleOf(obj.(*servingv1.Revision)), nil
}

// scaleOf returns the scale from a Revision's status. Unset values are 0.
func scaleOf(r *servingv1.Revision) *autoscalingv1.Scale {
	return &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{
			Name:              r.Name,
			Namespace:         r.Namespace,
			UID:               r.UID,
			ResourceVersion:   r.ResourceVersion,
			CreationTimestamp: r.CreationTimestamp,
		},
		Spec: autoscalingv1.ScaleSpec{Replicas: ptr.Deref(r.Status.DesiredReplicas, 0)},
		Status: autoscalingv1.ScaleStatus{
			Replicas: ptr.Deref(r.Status.ActualReplicas, 0),
			Selector: labels.Set{instanceLabelKey: r.Name}.String(),
		},
	}
}
