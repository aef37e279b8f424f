package v1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

// RegisterSettings has decoding fill by settings in force what every template has, instead of by the defaults
// of RegisterDefaults, which cannot know them. Call it before the scheme is used.
//
// Decoding also completes what is read from storage. So the settings have a say here only in fields that are
// never stored empty: objects may not change because a setting did.
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

// SetCreateDefaults fills by settings what a new object leaves out whose metadata is meta. It is decided once
// whether there are environment variables for every Service of the namespace: unless the operator wants them
// they are off, because their number grows with the namespace.
func (s *RevisionSpec) SetCreateDefaults(meta *metav1.ObjectMeta, st Settings) {
	st = st.forObject(meta)
	if s.EnableServiceLinks == nil && st.EnableServiceLinks != nil {
		s.EnableServiceLinks = ptr.To(*st.EnableServiceLinks)
	}
	s.setDefaultsBy(st)
}

// SetUpdateDefaults fills by settings what a template leaves out that replaces old in an object whose metadata
// is meta. What old got by earlier settings is a value like any other: an update that does not touch the
// template leaves it as it is, though fields may be empty that a setting fills by now, because a change would
// make a Revision that nobody asked for. Once the template changes, the settings in force fill what it leaves
// empty.
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

// setStoredDefaults fills how requests are handed to the revision, as far as every template says it.
func (s *RevisionSpec) setStoredDefaults(st Settings) {
	if s.ContainerConcurrency == nil {
		s.ContainerConcurrency = ptr.To(st.ContainerConcurrency)
	}
	if ptr.Deref(s.TimeoutSeconds, 0) == 0 {
		s.TimeoutSeconds = ptr.To(st.TimeoutSeconds)
	}
}

// setRequestDefaults fills how requests are handed to the revision. A part of a request gets no default that
// is longer than the whole: nobody asked for the fault that this would be.
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

// setResourceDefaults fills what a container asks for and is held to, except where that would contradict what
// the container does say: a limit below its request, or a request above its limit.
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

// setQuantity writes to a list of the container's own, which may be nil.
func setQuantity(list *corev1.ResourceList, name corev1.ResourceName, quantity resource.Quantity) {
	if *list == nil {
		*list = corev1.ResourceList{}
	}
	(*list)[name] = quantity.DeepCopy()
}
