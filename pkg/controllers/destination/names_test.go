package destination

import (
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/internal/controllertest"
)

// coreObject returns a core Service of the host; externalName is empty for one with its own Pods, allow for one that other namespaces
// may not refer to.
func coreObject(namespace, name, allow, externalName string) *unstructured.Unstructured {
	obj := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{}}}
	obj.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "Service"})
	obj.SetNamespace(namespace)
	obj.SetName(name)
	if allow != "" {
		obj.SetAnnotations(map[string]string{AllowFromAnnotationKey: allow})
	}
	if externalName != "" {
		obj.Object["spec"] = map[string]any{"type": "ExternalName", "externalName": externalName}
	}
	return obj
}

// TestURLOfAnotherNamespace checks that a URL needs the same grant as a reference, in each notation.
func TestURLOfAnotherNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ingress, gateway = "broker-ingress.system.svc.cluster.local", "gateway-internal.system.svc.cluster.local"
		_, host := newHost(
			coreObject("other", "closed", "", ""), coreObject("other", "open", "team-a, default", ""), coreObject("other", "all", "*", ""),
			coreObject("default", "mine", "", ""), coreObject("system", "etcd", "", ""), coreObject("system", "broker-ingress", "*", ""),
			coreObject("default", "hello", "", gateway), coreObject("other", "hello", "", gateway),
			coreObject("default", "c-kn-channel", "", ingress), coreObject("other", "c-kn-channel", "", ingress), coreObject("other", "d-kn-channel", "default", ingress),
			coreObject("default", "alias", "", "closed.other.svc.cluster.local"), coreObject("default", "second", "", "ALIAS.default.svc"),
			coreObject("default", "to-open", "", "open.other.svc"), coreObject("default", "outside", "", "api.example.com"),
			coreObject("default", "to-ingress", "", ingress+"."), coreObject("default", "self", "", "self.default.svc"),
		)
		theirs, granting := broker("b", "http://"+ingress+"/other/b"), broker("granting", "http://"+ingress+"/other/granting")
		theirs.Namespace, granting.Namespace = "other", "other"
		granting.Annotations = map[string]string{AllowFromAnnotationKey: "default"}
		mine, theirChannel := broker("b", "http://"+ingress+"/default/b"), channel("c", "http://c-kn-channel.other.svc.cluster.local")
		theirChannel.Namespace = "other"
		objects := []runtime.Object{theirs, granting, mine, theirChannel}
		o := Options{Host: host, Network: Network{Namespace: "system", Ingress: "broker-ingress", Gateway: "gateway-internal"}}
		refs := begin(t, controllertest.New(t, objects...), o)
		o.AllowCrossNamespace = true
		free := begin(t, controllertest.New(t, objects...), o)
		const none, notGranted, invalid = "", ReasonNotGranted, ReasonInvalid
		for _, tt := range []struct {
			uri  string
			want string
		}{
			// Names in this namespace and outside of the cluster.
			{"http://mine.default.svc.cluster.local/", none}, {"http://mine.default", none}, {"http://absent.default.svc", none},
			{"http://example.com/", none}, {"https://www.example.com:8443/a?b", none}, {"http://closed.svc.example.com", none},
			{"http://10.0.0.1/other/b", none}, {"http://[fd00::1]:80/", none}, {"http://localhost:8080/", none}, {"http://a.other.localhost/", none},
			// All notations of one name.
			{"http://closed.other.svc.cluster.local/", notGranted}, {"http://closed.other.svc/", notGranted}, {"http://closed.other/", notGranted},
			{"https://closed.other.svc:8443/a", notGranted}, {"http://CLOSED.Other.SVC.Cluster.Local", notGranted}, {"http://closed.other.svc.cluster.local./", notGranted},
			{"http://closed.other.", notGranted}, {"http://user:password@closed.other.svc/", notGranted}, {"http://closed。other。svc/", notGranted},
			{"http://closed．other.svc/", notGranted}, {"http://ｃlosed.other.svc/", notGranted}, {"http://pod-0.closed.other.svc.cluster.local/", notGranted},
			{"http://pod-0.closed.other/", notGranted}, {"http://closed.other.svc.corp.local/", notGranted}, {"http://a.b.closed.other", notGranted},
			// Errors do not disclose which objects another namespace has.
			{"http://absent.other.svc/", notGranted}, {"http://absent.nowhere.svc.cluster.local/", notGranted},
			// Granted.
			{"http://open.other.svc.cluster.local/", none}, {"http://open.other:80", none}, {"http://all.other.svc.", none}, {"http://pod-0.open.other.svc", none},
			// Names of one label belong to the server's own namespace, as do Pods of its Services.
			{"http://etcd:2379/", notGranted}, {"http://mine/", notGranted}, {"http://etcd-0.etcd/", notGranted},
			// Services of Knative.
			{"http://hello.default.svc.cluster.local/a", none}, {"http://hello.other.svc.cluster.local/", notGranted},
			{"http://c-kn-channel.default.svc.cluster.local/", none}, {"http://c-kn-channel.other.svc.cluster.local/", notGranted},
			{"http://d-kn-channel.other.svc.cluster.local", none},
			// Paths of the broker.
			{"http://" + ingress + "/default/b", none}, {"http://broker-ingress.system/default/absent/", none}, {"http://" + ingress + "/channels/default/c", none},
			{"http://" + ingress + "/other/b", notGranted}, {"http://BROKER-INGRESS.system.svc/other/b/", notGranted}, {"http://broker-ingress/other/b", notGranted},
			{"http://" + ingress + "/%6Fther/b", notGranted}, {"http://" + ingress + "/other%2Fb", notGranted}, {"http://" + ingress + "/default/../other/b", notGranted},
			{"http://" + ingress + "/other/absent", notGranted}, {"http://" + ingress + "/other/granting", none}, {"http://" + ingress + "/channels/other/c", notGranted},
			{"http://" + ingress + "/", notGranted},
			{"http://c-kn-channel.default.svc/other/b", notGranted}, {"http://c-kn-channel.default.svc/default/b", none}, {"http://d-kn-channel.other.svc/other/b", notGranted},
			// Services that are aliases.
			{"http://alias.default.svc/", notGranted}, {"http://second.default.svc/", notGranted}, {"http://to-open.default", none},
			{"http://outside.default.svc/", none}, {"http://to-ingress.default.svc/other/b", notGranted}, {"http://to-ingress.default.svc/default/b", none},
			{"http://self.default.svc/", invalid},
		} {
			_, err := refs.Resolve(t.Context(), &duckv1.Destination{URI: tt.uri})
			fault, _ := AsUnresolved(err)
			if fault == nil {
				fault = &Unresolved{}
			}
			if fault.Reason != tt.want {
				t.Errorf("%s: %q %v, want %q", tt.uri, fault.Reason, err, tt.want)
			}
			if got, err := free.Resolve(t.Context(), &duckv1.Destination{URI: tt.uri}); err != nil || got.URL != tt.uri {
				t.Errorf("%s, without required grants: %q, %v", tt.uri, got.URL, err)
			}
		}
	})
}

// TestURLWithReference checks the grant for a path relative to a reference, and for a reference to a Service that is an alias.
func TestURLWithReference(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ingress = "broker-ingress.system.svc.cluster.local"
		_, host := newHost(coreObject("default", "alias", "", "closed.other.svc.cluster.local"), coreObject("other", "closed", "", ""),
			coreObject("default", "c-kn-channel", "", ingress), coreObject("default", "mine", "", ""))
		theirs := broker("b", "http://"+ingress+"/other/b")
		theirs.Namespace = "other"
		refs := begin(t, controllertest.New(t, theirs, broker("b", "http://"+ingress+"/default/b"), channel("c", "http://c-kn-channel.default.svc.cluster.local")),
			Options{Host: host, Network: Network{Namespace: "system", Ingress: "broker-ingress"}})
		for _, tt := range []struct {
			to   *duckv1.KReference
			uri  string
			want string
		}{
			{ref("eventing.knative.dev/v1", "Broker", "b"), "c", ""},
			{ref("eventing.knative.dev/v1", "Broker", "b"), "/other/b", ReasonNotGranted},
			{ref("eventing.knative.dev/v1", "Broker", "b"), "../other/b", ReasonNotGranted},
			{ref("messaging.knative.dev/v1", "Channel", "c"), "?a=b", ""},
			{ref("messaging.knative.dev/v1", "Channel", "c"), "/other/b", ReasonNotGranted},
			{ref("v1", "Service", "mine"), "/other/b", ""},
			{ref("v1", "Service", "alias"), "", ReasonNotGranted},
			{ref("v1", "Service", "alias"), "/a", ReasonNotGranted},
		} {
			_, err := refs.Resolve(t.Context(), &duckv1.Destination{Ref: tt.to, URI: tt.uri})
			if fault, _ := AsUnresolved(err); fault == nil && tt.want != "" || fault != nil && fault.Reason != tt.want {
				t.Errorf("%s %s with %q: %v, want %q", tt.to.Kind, tt.to.Name, tt.uri, err, tt.want)
			}
		}
	})
}

// TestURLFollowsGrant checks that a URL is resolved again when the grant is added or removed, and when a Service with the name is created.
func TestURLFollowsGrant(t *testing.T) {
	client, host := newHost(coreObject("other", "web", "", ""))
	services := client.Resource(core).Namespace("other")
	follow(t, Options{Host: host}, nil, &duckv1.Destination{URI: "http://web.other/"}, func(_ *controllertest.Fixture, f *follower, _ func()) {
		last := func(what, want string) {
			t.Helper()
			if seen := f.results(); len(seen) == 0 || seen[len(seen)-1] != want {
				t.Errorf("%s: %q, want %q", what, seen, want)
			}
		}
		denied := (&grants{namespace: referrer.Namespace}).missing(coreService(types.NamespacedName{Namespace: "other", Name: "web"})).Message
		must := func(_ any, err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		last("not granted", denied)
		must(services.Update(t.Context(), coreObject("other", "web", "default", ""), metav1.UpdateOptions{}))
		last("granted", "http://web.other/")
		must(services.Update(t.Context(), coreObject("other", "web", "", ""), metav1.UpdateOptions{}))
		last("withdrawn", denied)
		must(nil, services.Delete(t.Context(), "web", metav1.DeleteOptions{}))
		last("the Service is deleted", "http://web.other/")
		must(services.Create(t.Context(), coreObject("other", "web", "", ""), metav1.CreateOptions{}))
		last("a Service again", denied)
	})
}

// TestURLUnavailable checks that events are not sent to a name before its owner is known.
func TestURLUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, host := newHost()
		client.PrependReactor("list", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewServiceUnavailable("not now")
		})
		refs := begin(t, controllertest.New(t), Options{Host: host})
		for _, uri := range []string{"http://web.other/", "http://web.other.svc"} {
			_, err := refs.Resolve(t.Context(), &duckv1.Destination{URI: uri})
			if fault, ok := AsUnresolved(err); !ok || fault.Reason != ReasonUnavailable {
				t.Errorf("%s: %v", uri, err)
			}
		}
	})
}

// TestServicesOf finds the Services that a host name may lead to.
func TestServicesOf(t *testing.T) {
	n := hostNames{Network{Namespace: "system"}, "Cluster.Local."}
	name := func(namespace, name string) types.NamespacedName {
		return types.NamespacedName{Namespace: namespace, Name: name}
	}
	for host, want := range map[string][]types.NamespacedName{
		"": nil, ".": nil, "127.0.0.1": nil, "::1": nil, "LOCALHOST.": nil,
		"a":                       {name("system", "a")},
		"a.b":                     {name("b", "a"), name("system", "b")},
		"a.b.svc":                 {name("b", "a")},
		"x.a.b.svc.cluster.local": {name("b", "a")},
		"b.svc":                   {name("svc", "b"), name("system", "svc")},
		"b.svc.cluster.local":     {name("local", "cluster"), name("system", "local")},
		"a.b.svc.corp":            {name("b", "a"), name("corp", "svc"), name("system", "corp")},
	} {
		if got, _ := n.services(host); !cmp.Equal(want, got) {
			t.Errorf("%q: %v, want %v", host, got, want)
		}
	}
}

// TestCoreServiceWithCertificates checks that such a Service has an https URL.
func TestCoreServiceWithCertificates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, host := newHost(coreObject("default", "web", "", ""))
		for name, o := range map[string]Options{"with a host": {Host: host}, "without": {}} {
			refs := begin(t, controllertest.New(t), o)
			for certificates, want := range map[string]string{"": "http://web.default.svc.cluster.local/a", "ours": "https://web.default.svc.cluster.local/a"} {
				got, err := refs.Resolve(t.Context(), &duckv1.Destination{Ref: ref("v1", "Service", "web"), URI: "/a", CACerts: &certificates})
				if err != nil || got.URL != want || ptr.Deref(got.CACerts, "") != certificates {
					t.Errorf("%s: got %q with certificates %q, %v, want %q", name, got.URL, ptr.Deref(got.CACerts, ""), err, want)
				}
			}
		}
	})
}
