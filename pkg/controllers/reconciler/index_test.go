package reconciler

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned/fake"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/informers/externalversions"
)

// Objects are found by their controller, not by other owners, and several callers may add the index.
func TestControlledBy(t *testing.T) {
	informer := externalversions.NewSharedInformerFactory(fake.NewSimpleClientset(), 0).Serving().V1().Revisions().Informer()
	for range 2 {
		if err := IndexByController(informer); err != nil {
			t.Fatal(err)
		}
	}
	for name, controller := range map[string]bool{"controlled": true, "owned": false} {
		if err := informer.GetIndexer().Add(&servingv1.Revision{ObjectMeta: metav1.ObjectMeta{
			Name: name, OwnerReferences: []metav1.OwnerReference{{UID: "uid", Controller: ptr.To(controller)}},
		}}); err != nil {
			t.Fatal(err)
		}
	}
	got, err := ControlledBy[*servingv1.Revision](informer.GetIndexer(), "uid")
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got[0].Name != "controlled" {
		t.Errorf("got %v", got)
	}
}
