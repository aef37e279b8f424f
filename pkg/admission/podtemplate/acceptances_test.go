package podtemplate

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

func podOf(t *testing.T, name, namespace, image string) *corev1.Pod {
	t.Helper()
	service := serviceWith(image)
	service.Name, service.Spec.Template.Name = name, name+"-00001"
	return anonymous("Service", namespace, &service.Spec.Template, nil)
}

func mustKey(t *testing.T, v *acceptances, pod *corev1.Pod) acceptanceKey {
	t.Helper()
	key, err := v.key(pod)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func TestAcceptanceHoldsForTheSamePod(t *testing.T) {
	v := newAcceptances()
	v.add(mustKey(t, v, podOf(t, "a", "ns", "image")))
	tests := []struct {
		name string
		pod  *corev1.Pod
		want bool
	}{
		{"the same", podOf(t, "a", "ns", "image"), true},
		{"of another object", podOf(t, "b", "ns", "image"), true},
		{"in another namespace", podOf(t, "a", "other", "image"), false},
		{"with another image", podOf(t, "a", "ns", "other"), false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := v.has(mustKey(t, v, test.pod)); got != test.want {
				t.Errorf("known = %v, want %v", got, test.want)
			}
		})
	}
}

func TestAcceptanceExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newAcceptances()
		key := mustKey(t, v, podOf(t, "a", "ns", "image"))
		v.add(key)
		time.Sleep(acceptanceTTL - time.Second) //nolint:forbidigo // the clock is synctest's
		if !v.has(key) {
			t.Error("the acceptance was forgotten too early")
		}
		time.Sleep(2 * time.Second) //nolint:forbidigo // the clock is synctest's
		if v.has(key) {
			t.Error("the acceptance was not forgotten")
		}
	})
}

func TestAcceptanceEndsWhenTheHostsRulesChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns", ResourceVersion: "1"}}
		host := fake.NewClientset(namespace)
		factory := informers.NewSharedInformerFactory(host, 0)
		v := newAcceptances()
		if err := v.watch(factory); err != nil {
			t.Fatal(err)
		}
		defer factory.Shutdown()
		defer cancel()
		factory.Start(ctx.Done())
		synctest.Wait()
		if v.epoch.Load() == 0 {
			t.Error("the existing namespace begins no epoch")
		}

		changes := map[string]func() error{
			"a namespace is labelled": func() error {
				changed := namespace.DeepCopy()
				changed.ResourceVersion = "2"
				changed.Labels = map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}
				_, err := host.CoreV1().Namespaces().Update(ctx, changed, metav1.UpdateOptions{})
				return err
			},
			"a policy is created": func() error {
				_, err := host.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(ctx,
					&admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}}, metav1.CreateOptions{})
				return err
			},
			"a webhook is created": func() error {
				_, err := host.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(ctx,
					&admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "w"}}, metav1.CreateOptions{})
				return err
			},
		}
		for name, change := range changes {
			pod := podOf(t, "a", "ns", "image")
			v.add(mustKey(t, v, pod))
			if err := change(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if synctest.Wait(); v.has(mustKey(t, v, pod)) {
				t.Errorf("%s: the acceptance was not forgotten", name)
			}
		}
	})
}

func TestOneQuestionForAllThatAskAtOnce(t *testing.T) {
	const callers = 10
	refusal := errors.New("refused")
	for _, test := range []struct {
		name   string
		answer error
		// Each caller gets the rejection of its own dry run.
		asked int64
	}{
		{"accepted", nil, 1},
		{"refused", refusal, callers},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := newAcceptances()
				key := mustKey(t, v, podOf(t, "a", "ns", "image"))
				var asked atomic.Int64
				answered := make(chan struct{})
				for range callers {
					go func() {
						err := v.accepts(key, func() error {
							asked.Add(1)
							<-answered
							return test.answer
						})
						if !errors.Is(err, test.answer) {
							t.Errorf("the answer is %v", err)
						}
					}()
				}
				synctest.Wait()
				if n := asked.Load(); n != 1 {
					t.Errorf("%d concurrent calls", n)
				}
				close(answered)
				synctest.Wait()
				if n := asked.Load(); n != test.asked {
					t.Errorf("%d dry runs, want %d", n, test.asked)
				}
			})
		})
	}
}
