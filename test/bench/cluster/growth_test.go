package cluster

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/bench/creation"
	"github.com/knative-apiserver/knative-apiserver/test/bench/figures"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

var (
	growthServices = flag.Int("services", 1000, "number of Services of BenchmarkGrowth")
	growthTriggers = flag.Int("triggers", 1000, "number of Triggers of BenchmarkGrowth, all of one Broker")
)

// BenchmarkGrowth creates many Services with an initial scale of zero, which it allows meanwhile, and many Triggers of one Broker. It reports
// the rate at which the last tenth is created relative to the first, the time until all are ready, the memory of all Pods of the installation, the
// time until a changed Route takes effect at every gateway, and the times after kill -9 until a gateway serves a host and a replica accepts an event.
func BenchmarkGrowth(b *testing.B) {
	many := [...]int{short(*growthServices, 20), short(*growthTriggers, 20)}
	allowZero(b, "true")
	defer allowZero(b, "false")
	once(b, func() {
		before := resident(b)
		b.ReportMetric(before/1e6, "rss-MB")
		// The host deletes about ten Services per second with their Deployments.
		inLargeNamespace(b, patience+time.Duration(many[0])*time.Second/5, func(namespace string) {
			creation.Measure(b, "Services", patient{node.Admin.Knative.ServingV1().Services(namespace)}, many[0], many[0]/10, func(i int) *servingv1.Service {
				return service(fmt.Sprintf("service-%d", i), map[string]string{servingv1.InitialScaleAnnotationKey: "0"})
			})
			after := resident(b)
			b.ReportMetric(after/1e6, "rss-Services-MB")
			creation.Measure(b, "Brokers", node.Admin.Knative.EventingV1().Brokers(namespace), 1, 1, func(int) *eventingv1.Broker {
				return &eventingv1.Broker{ObjectMeta: metav1.ObjectMeta{Name: "growth"}}
			})
			creation.Measure(b, "Triggers", node.Admin.Knative.EventingV1().Triggers(namespace), many[1], many[1]/10, func(i int) *eventingv1.Trigger {
				return &eventingv1.Trigger{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("trigger-%d", i)}, Spec: eventingv1.TriggerSpec{
					Broker: "growth", Filter: &eventingv1.TriggerFilter{Attributes: map[string]string{"type": fmt.Sprintf("type-%d", i)}},
					Subscriber: duckv1.Destination{Ref: &duckv1.KReference{Kind: "Service", APIVersion: "serving.knative.dev/v1", Name: "service-0"}},
				}}
			})
			b.ReportMetric(resident(b)/1e6, "rss-Triggers-MB")
			changeRoute(b, namespace, "service-0")
			restart(b, namespace, "service-0", "growth")
		})
	})
}

// patient creates Services of which a replica may not know yet that their initial scale is allowed.
type patient struct {
	creation.Creator[*servingv1.Service]
}

// Create implements creation.Creator.
func (p patient) Create(ctx context.Context, service *servingv1.Service, options metav1.CreateOptions) (created *servingv1.Service, err error) {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err = harness.Poll(limited, func() error {
		created, err = p.Creator.Create(limited, service, options)
		return err
	})
	return created, err
}

// allowZero sets whether an initial scale may be zero.
func allowZero(b *testing.B, value string) {
	b.Helper()
	patch := fmt.Sprintf(`{"data":{"allow-zero-initial-scale":%q}}`, value)
	maps := node.Host.CoreV1().ConfigMaps(harness.SystemNamespace)
	if _, err := maps.Patch(context.WithoutCancel(b.Context()), "config-autoscaler", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		b.Fatal(err)
	}
}

// The ports of a gateway for requests, and of a replica for events.
const (
	gatewayPort = "8080"
	brokerPort  = "8082"
)

// changeRoute measures changes of the Route of a Service at all gateways.
func changeRoute(b *testing.B, namespace, name string) {
	b.Helper()
	client := node.Admin.Knative.ServingV1().Services(namespace)
	known := hostOf(b, namespace, name)
	pods, err := node.GatewayPods(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	serve := func(host string) time.Duration {
		return figures.Until(b, patience, "every gateway serves "+host, func() (err error) {
			for i := range pods {
				err = errors.Join(err, creation.Get(b.Context(), at(&pods[i], gatewayPort), host))
			}
			return err
		})
	}
	serve(known)
	creation.ChangeRoute(b, client, name, short(100, 5), func(tag string) time.Duration { return serve(tag + "-" + known) })
}

// restart kills a gateway and a replica, one after the other, and measures the time until each works again.
func restart(b *testing.B, namespace, service, broker string) {
	b.Helper()
	known := hostOf(b, namespace, service)
	gateways, err := node.GatewayPods(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	replicas, err := node.ServerPods(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	for _, part := range []struct {
		pod          *corev1.Pod
		what, metric string
		probe        func() error
	}{
		{&gateways[0], "a killed gateway serves a host", "gateway-served-after-s", func() error { return creation.Get(b.Context(), at(&gateways[0], gatewayPort), known) }},
		{&replicas[0], "a killed replica accepts an event", "replica-accepted-after-s", func() error {
			return creation.Send(b.Context(), at(&replicas[0], brokerPort), namespace, broker, "none")
		}},
	} {
		if err := node.Signal(part.pod, syscall.SIGKILL); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(figures.Until(b, patience, part.what, part.probe).Seconds(), part.metric)
	}
	await(b, "all replicas are ready", func() error { return node.Whole(b.Context()) })
}

// hostOf returns the host name of a Service.
func hostOf(b *testing.B, namespace, name string) string {
	b.Helper()
	s, err := node.Admin.Knative.ServingV1().Services(namespace).Get(b.Context(), name, metav1.GetOptions{})
	if err != nil {
		b.Fatal(err)
	}
	return host(s)
}

// at returns the address of a port of a Pod.
func at(pod *corev1.Pod, port string) string { return net.JoinHostPort(pod.Status.PodIP, port) }
