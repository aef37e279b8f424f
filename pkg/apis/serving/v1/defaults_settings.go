package v1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

// RegisterSettings registers defaulting functions that use the current settings for fields of every template. They replace the
// functions of RegisterDefaults, which do not know the settings. Call it before the scheme is used.
//
// Objects are also defaulted when they are read from storage. Therefore, settings only affect fields that are never stored empty:
// objects must not change because a setting did.
func RegisterSettings(scheme *runtime.Scheme, settings func() Settings) {
	service := func(s *Service) {
		s.Spec.Template.Spec.setStoredDefaults(settings())
		SetObjectDefaults_Service(s)
	}
	configuration := func(c *Configuration) {
		c.Spec.Template.Spec.setStoredDefaults(settings())
		SetObjectDefaults_Configuration(c)
	}
	scheme.AddTypeDefaultingFunc(&Service{}, func(obj any) { service(obj.(*Service)) })
	scheme.AddTypeDefaultingFunc(&ServiceList{}, func(obj any) {
		for i := range obj.(*ServiceList).Items {
			service(&obj.(*ServiceList).Items[i])
		}
	})
	scheme.AddTypeDefaultingFunc(&Configuration{}, func(obj any) { configuration(obj.(*Configuration)) })
	scheme.AddTypeDefaultingFunc(&ConfigurationList{}, func(obj any) {
		for i := range obj.(*ConfigurationList).Items {
			configuration(&obj.(*ConfigurationList).Items[i])
		}
	})
}

// SetCreateDefaults sets the defaults of a new object from settings; meta is its metadata. It also decides, once, whether containers
// have environment variables for every Service of the namespace. They are off by default, because their number grows with the
// namespace.
func (s *RevisionSpec) SetCreateDefaults(meta *metav1.ObjectMeta, st Settings) {
	st = st.forObject(meta)
	if s.EnableServiceLinks == nil && st.EnableServiceLinks != nil {
		s.EnableServiceLinks = ptr.To(*st.EnableServiceLinks)
	}
	s.setDefaultsBy(st)
}

// SetUpdateDefaults sets the defaults of a template that replaces old; meta is the metadata of its object. Values that old
// received from earlier settings are kept like any other: an update that does not change the template leaves it unchanged, even if
// a new setting would now set an empty field, because a change would create an unexpected Revision. If the template changes, the
// current settings apply to its empty fields.
func (t *RevisionTemplateSpec) SetUpdateDefaults(old *RevisionTemplateSpec, meta *metav1.ObjectMeta, st Settings) {
	t.Spec.KeepCreateDefaults(&old.Spec)
	t.setFixedDefaults()
	if !equality.Semantic.DeepEqual(t, old) {
		t.Spec.setDefaultsBy(st.forObject(meta))
	}
}

func (s *RevisionSpec) setDefaultsBy(st Settings) {
	s.setRequestDefaults(st)
	for i := range s.Containers {
		setResourceDefaults(&s.Containers[i].Resources, st)
	}
}

// setStoredDefaults sets the request defaults that every template has.
func (s *RevisionSpec) setStoredDefaults(st Settings) {
	if s.ContainerConcurrency == nil {
		s.ContainerConcurrency = ptr.To(st.ContainerConcurrency)
	}
	if ptr.Deref(s.TimeoutSeconds, 0) == 0 {
		s.TimeoutSeconds = ptr.To(st.TimeoutSeconds)
	}
}

// setRequestDefaults sets the defaults of request handling. Timeouts of a part of a request do not exceed the timeout of the whole
// request, which would be an error that the user did not cause.
func (s *RevisionSpec) setRequestDefaults(st Settings) {
	s.setStoredDefaults(st)
	part := func(seconds **int64, byDefault int64) {
		if *seconds == nil && byDefault > 0 && byDefault <= *s.TimeoutSeconds {
			*seconds = ptr.To(byDefault)
		}
	}
	part(&s.ResponseStartTimeoutSeconds, st.ResponseStartTimeoutSeconds)
	part(&s.IdleTimeoutSeconds, st.IdleTimeoutSeconds)
}

// setResourceDefaults sets the default requests and limits of a container unless they contradict the container's own values: a limit
// below its request, or a request above its limit.
func setResourceDefaults(r *corev1.ResourceRequirements, st Settings) {
	for name, limit := range st.Limits {
		_, set := r.Limits[name]
		if request, asked := r.Requests[name]; !set && (!asked || request.Cmp(limit) <= 0) {
			setQuantity(&r.Limits, name, limit)
		}
	}
	for name, request := range st.Requests {
		_, set := r.Requests[name]
		if limit, limited := r.Limits[name]; !set && (!limited || request.Cmp(limit) <= 0) {
			setQuantity(&r.Requests, name, request)
		}
	}
}

// setQuantity sets a quantity in a list of the container, which may be nil.
func setQuantity(list *corev1.ResourceList, name corev1.ResourceName, quantity resource.Quantity) {
	if *list == nil {
		*list = corev1.ResourceList{}
	}
	(*list)[name] = quantity.DeepCopy()
}
