package controllertest

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	informerscorev1 "k8s.io/client-go/informers/core/v1"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/senderaccount"
)

// Accounts are the ServiceAccounts of a fake host cluster.
type Accounts struct {
	senderaccount.Source
	// Host has the ServiceAccounts.
	Host *kubefake.Clientset
}

// NewAccounts returns ServiceAccounts with some objects, while senders are authenticated or not. Sync updates the informer.
func NewAccounts(authenticated bool, objects ...runtime.Object) *Accounts {
	host := kubefake.NewClientset(objects...)
	// The informer of a server has metadata only.
	informer := informerscorev1.NewFilteredServiceAccountInformer(host, metav1.NamespaceAll, 0, cache.Indexers{}, func(o *metav1.ListOptions) {
		o.LabelSelector = senderaccount.LabelKey + "=" + senderaccount.LabelValue
	})
	return &Accounts{Host: host, Source: senderaccount.Source{
		Client: host.CoreV1(), Informer: informer, Enabled: func() bool { return authenticated },
	}}
}

// Of returns the Accounts of a kind for a Reconciler without a controller.
func (a *Accounts) Of(t *testing.T, kind schema.GroupVersionKind) *senderaccount.Accounts {
	t.Helper()
	accounts, err := a.Source.Of(kind, Silent{})
	if err != nil {
		t.Fatal(err)
	}
	return accounts
}

// Sync updates the informer from the host.
func (a *Accounts) Sync(t *testing.T) {
	t.Helper()
	list, err := a.Host.CoreV1().ServiceAccounts("").List(t.Context(), metav1.ListOptions{LabelSelector: senderaccount.LabelKey + "=" + senderaccount.LabelValue})
	if err != nil {
		t.Fatal(err)
	}
	objects := make([]any, 0, len(list.Items))
	for i := range list.Items {
		objects = append(objects, &list.Items[i])
	}
	if err := a.Informer.GetIndexer().Replace(objects, ""); err != nil {
		t.Fatal(err)
	}
}
