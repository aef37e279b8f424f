package kubernetes

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/podspec"
)

// Start watches the Deployments and Pods of all Revisions until ctx is canceled, and returns after the initial lists.
// Canceling ctx also stops all background work. Call it once, before Apply.
func (rt *Runtime) Start(ctx context.Context) error {
	rt.ctx = ctx
	factory := informers.NewSharedInformerFactoryWithOptions(rt.client, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = podspec.RevisionUIDLabelKey }),
		informers.WithTransform(trim))
	deployments, err := factory.Apps().V1().Deployments().Informer().AddEventHandler(handler(
		func(d *appsv1.Deployment) { rt.deploymentChanged(d, false) },
		func(d *appsv1.Deployment) { rt.deploymentChanged(d, true) },
	))
	if err != nil {
		return fmt.Errorf("watch Deployments: %w", err)
	}
	pods, err := factory.Core().V1().Pods().Informer().AddEventHandler(handler(
		func(p *corev1.Pod) { rt.podChanged(p, false) },
		func(p *corev1.Pod) { rt.podChanged(p, true) },
	))
	if err != nil {
		return fmt.Errorf("watch Pods: %w", err)
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), deployments.HasSynced, pods.HasSynced) {
		return fmt.Errorf("watch Deployments and Pods: %w", context.Cause(ctx))
	}
	return nil
}

func handler[T any](changed, gone func(T)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { changed(obj.(T)) },
		UpdateFunc: func(_, obj any) { changed(obj.(T)) },
		DeleteFunc: func(obj any) {
			if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = unknown.Obj
			}
			if object, ok := obj.(T); ok {
				gone(object)
			}
		},
	}
}

// trim removes unused fields of cached objects. It is idempotent.
func trim(obj any) (any, error) {
	switch object := obj.(type) {
	case *corev1.Pod:
		return trimPod(object), nil
	case *appsv1.Deployment:
		return trimDeployment(object), nil
	default:
		return obj, nil
	}
}

func trimMeta(from *metav1.ObjectMeta) metav1.ObjectMeta {
	meta := metav1.ObjectMeta{
		Name: from.Name, Namespace: from.Namespace, UID: from.UID, ResourceVersion: from.ResourceVersion,
		CreationTimestamp: from.CreationTimestamp, DeletionTimestamp: from.DeletionTimestamp,
		DeletionGracePeriodSeconds: from.DeletionGracePeriodSeconds,
		Labels:                     map[string]string{},
	}
	for _, key := range []string{podspec.RevisionLabelKey, podspec.RevisionUIDLabelKey} {
		if value, ok := from.Labels[key]; ok {
			meta.Labels[key] = value
		}
	}
	return meta
}

func trimPod(from *corev1.Pod) *corev1.Pod {
	status := &from.Status
	pod := &corev1.Pod{
		ObjectMeta: trimMeta(&from.ObjectMeta),
		Status: corev1.PodStatus{
			Phase: status.Phase, Reason: status.Reason, Message: status.Message, PodIP: status.PodIP,
			InitContainerStatuses: trimStatuses(status.InitContainerStatuses),
			ContainerStatuses:     trimStatuses(status.ContainerStatuses),
		},
	}
	for i := range from.Spec.Containers {
		c := &from.Spec.Containers[i]
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{
			Name: c.Name, Ports: c.Ports, ReadinessProbe: c.ReadinessProbe, StartupProbe: c.StartupProbe, Lifecycle: c.Lifecycle,
		})
	}
	for i := range from.Spec.InitContainers {
		// Native sidecars determine the readiness of the Pod too.
		if c := &from.Spec.InitContainers[i]; servingv1.IsNativeSidecar(c) {
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, corev1.Container{
				Name: c.Name, RestartPolicy: c.RestartPolicy, ReadinessProbe: c.ReadinessProbe, StartupProbe: c.StartupProbe,
			})
		}
	}
	for i := range status.Conditions {
		switch c := status.Conditions[i]; c.Type {
		case corev1.PodReady, corev1.PodScheduled:
			pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
				Type: c.Type, Status: c.Status, Reason: c.Reason, Message: c.Message,
			})
		}
	}
	return pod
}

func trimStatuses(from []corev1.ContainerStatus) []corev1.ContainerStatus {
	var all []corev1.ContainerStatus
	for i := range from {
		s := &from[i]
		all = append(all, corev1.ContainerStatus{
			Name: s.Name, State: s.State, LastTerminationState: s.LastTerminationState,
			Ready: s.Ready, RestartCount: s.RestartCount, Started: s.Started, Image: s.Image,
		})
	}
	return all
}

func trimDeployment(from *appsv1.Deployment) *appsv1.Deployment {
	deployment := &appsv1.Deployment{
		ObjectMeta: trimMeta(&from.ObjectMeta),
		Spec:       appsv1.DeploymentSpec{Replicas: from.Spec.Replicas},
	}
	if warning := from.Annotations[warningAnnotationKey]; warning != "" {
		deployment.Annotations = map[string]string{warningAnnotationKey: warning}
	}
	if owner := metav1.GetControllerOfNoCopy(from); owner != nil {
		deployment.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	template := &deployment.Spec.Template.Spec
	images := func(containers []corev1.Container) []corev1.Container {
		var all []corev1.Container
		for i := range containers {
			all = append(all, corev1.Container{Name: containers[i].Name, Image: containers[i].Image})
		}
		return all
	}
	template.Containers = images(from.Spec.Template.Spec.Containers)
	template.InitContainers = images(from.Spec.Template.Spec.InitContainers)
	for i := range from.Status.Conditions {
		if c := &from.Status.Conditions[i]; isRefusal(c) {
			deployment.Status.Conditions = []appsv1.DeploymentCondition{{Type: c.Type, Status: c.Status, Reason: c.Reason, Message: c.Message}}
		}
	}
	return deployment
}
