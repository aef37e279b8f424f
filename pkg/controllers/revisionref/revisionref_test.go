package revisionref

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned/fake"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/informers/externalversions"
)

// Routes are found by the Revisions in their spec and by the Revisions in their status.
func TestRoutesByRevision(t *testing.T) {
	informer := externalversions.NewSharedInformerFactory(fake.NewSimpleClientset(), 0).Serving().V1().Routes().Informer()
	if err := IndexRoutes(informer); err != nil {
		t.Fatal(err)
	}
	route := &servingv1.Route{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "hello"}}
	route.Spec.Traffic = []servingv1.TrafficTarget{{RevisionName: "next"}, {ConfigurationName: "hello"}}
	route.Status.Traffic = []servingv1.TrafficTarget{{RevisionName: "former"}}
	if err := informer.GetIndexer().Add(route); err != nil {
		t.Fatal(err)
	}
	for revision, want := range map[string]int{"default/next": 1, "default/former": 1, "default/hello": 0, "other/next": 0} {
		found, err := reconciler.Indexed[*servingv1.Route](informer.GetIndexer(), RoutesByRevision, revision)
		if err != nil {
			t.Fatal(err)
		}
		if len(found) != want {
			t.Errorf("%d Routes name Revision %s, want %d", len(found), revision, want)
		}
	}
}

// A Revision's label has the generation that it was created from (serving 9.2.1-4).
func TestGeneration(t *testing.T) {
	for label, want := range map[string]int64{"12": 12, "": 0, "x": 0} {
		revision := &servingv1.Revision{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{servingv1.ConfigurationGenerationLabelKey: label}}}
		if got := Generation(revision); got != want {
			t.Errorf("generation of label %q is %d, want %d", label, got, want)
		}
	}
}
