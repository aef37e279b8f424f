package registry

import (
	"context"

	"k8s.io/apiserver/pkg/endpoints/request"
)

// Annotations, prefixed with the group's name, of the users who created and last changed an object.
const (
	creatorAnnotation      = "/creator"
	lastModifierAnnotation = "/lastModifier"
)

// recordCreator sets both annotations from the request's user. Values in the request are accepted only from controllers,
// which copy a Service's annotations to the objects it owns.
func (s strategy[O, Spec, Status]) recordCreator(ctx context.Context, obj O) {
	name := userName(ctx)
	for _, suffix := range []string{creatorAnnotation, lastModifierAnnotation} {
		key := s.GroupVersion.Group + suffix
		if obj.GetAnnotations()[key] != "" && s.Controllers.Made(ctx) {
			continue
		}
		setAnnotation(obj, key, name)
	}
}

// recordModifier keeps the creator and sets the last modifier if the spec changed.
func (s strategy[O, Spec, Status]) recordModifier(ctx context.Context, obj, old O, changed bool) {
	if s.Controllers.Made(ctx) {
		return
	}
	creator := s.GroupVersion.Group + creatorAnnotation
	lastModifier := s.GroupVersion.Group + lastModifierAnnotation
	setAnnotation(obj, creator, old.GetAnnotations()[creator])
	modifier := old.GetAnnotations()[lastModifier]
	if changed {
		modifier = userName(ctx)
	}
	setAnnotation(obj, lastModifier, modifier)
}

func userName(ctx context.Context) string {
	if user, ok := request.UserFrom(ctx); ok {
		return user.GetName()
	}
	return ""
}

// setAnnotation sets an annotation, or removes it when value is empty.
func setAnnotation(obj Object, key, value string) {
	annotations := obj.GetAnnotations()
	if value == "" {
		delete(annotations, key)
		return
	}
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[key] = value
	obj.SetAnnotations(annotations)
}
