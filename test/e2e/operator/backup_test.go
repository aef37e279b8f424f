package operator

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/knative-apiserver/knative-apiserver/pkg/origin"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// watched is the time for the garbage collector of the cluster to delete a restored object wrongly.
const watched = 2 * time.Minute

// TestBackupAndRestore follows the procedures of docs/operations.md on an installation with history: objects that were deleted
// after the snapshot, and their Pods; others that still exist, with Pods and undelivered events; objects newer than the
// snapshot; and an earlier restore of the same snapshot. Every object and event exists afterwards, and stays. Running Pods
// continue.
func TestBackupAndRestore(t *testing.T) {
	s := setUp(t)
	split := newSplitService(t, s)
	lost, kept := holdEvents(t, s), holdEvents(t, s)
	lostChannel := holdChannelEvents(t, s)
	snapshot := filepath.Join(t.TempDir(), "objects.db")
	if err := os.WriteFile(snapshot, []byte(serverCommand(t, "", "snapshot", "save", "-")), 0o600); err != nil {
		t.Fatal(err)
	}
	events := serverCommand(t, "", "events", "save", "-")
	ownConfigMap(t, s)
	saved := objectsOf(t, s.namespace)
	pods := podsOf(t, s.namespace, appName)

	for round := range 2 {
		create(t, idleTrigger(s.namespace, "later"))
		if round == 0 {
			lost.discard(t)
			lostChannel.discard(t)
		}
		split.discard(t)
		if err := node.Script(t.Context(), "restore.sh", snapshot); err != nil {
			t.Fatal(err)
		}
		served := split.watch(t)
		awaitWhole(t)
		restored := objectsOf(t, s.namespace)
		if owner := ownerOfConfigMap(t, s); owner != restored["Service "+appName] {
			t.Errorf("restore %d: a ConfigMap belongs to %s, want %s", round, owner, restored["Service "+appName])
		}
		for name, uid := range saved {
			if now := restored[name]; origin.UID(now) != origin.UID(uid) || now == uid {
				t.Errorf("restore %d: %s has UID %q, which was %q", round, name, now, uid)
			}
		}
		if _, found := restored["Trigger later"]; found {
			t.Errorf("restore %d: a Trigger that is newer than the snapshot exists", round)
		}
		if round == 1 {
			pass(t, watched)
		}
		for name, uid := range objectsOf(t, s.namespace) {
			if restored[name] != uid {
				t.Errorf("restore %d: %s had UID %q, and %q later", round, name, restored[name], uid)
			}
			delete(restored, name)
		}
		for name := range restored {
			t.Errorf("restore %d: %s was restored, and deleted", round, name)
		}
		served.stop(t)
		for name, uid := range podsOf(t, s.namespace, appName) {
			if pods[name] != uid {
				t.Errorf("restore %d: Pod %s replaced a running one", round, name)
			}
		}
		saved = restoredUIDs(saved, objectsOf(t, s.namespace))
	}
	kept.release(t)
	serverCommand(t, events, "events", "restore", "-")
	lost.release(t)
	lostChannel.release(t)
	startLoad(t, s, true).stop(t)
}

// ownedName is the name of a ConfigMap that the stage's Service owns.
const ownedName = "owned"

// ownConfigMap creates a user's object that the stage's Service owns.
func ownConfigMap(t *testing.T, s *stage) {
	t.Helper()
	kind := harness.KindOf("Service")
	owner, err := node.Admin.Dynamic.Resource(kind.GVR()).Namespace(s.namespace).Get(t.Context(), appName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: ownedName, OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, owner.GroupVersionKind())},
	}}
	if _, err := node.Host.CoreV1().ConfigMaps(s.namespace).Create(t.Context(), configMap, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func ownerOfConfigMap(t *testing.T, s *stage) types.UID {
	t.Helper()
	configMap, err := node.Host.CoreV1().ConfigMaps(s.namespace).Get(t.Context(), ownedName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return configMap.OwnerReferences[0].UID
}

// restoredUIDs returns the current UIDs of the objects of before.
func restoredUIDs(before, now map[string]types.UID) map[string]types.UID {
	maps.DeleteFunc(now, func(name string, _ types.UID) bool { _, found := before[name]; return !found })
	return now
}

// serverCommand runs a command of the server on one of its replicas.
func serverCommand(t *testing.T, input string, args ...string) string {
	t.Helper()
	kubectl := harness.NewKubectl(t, node.Kubeconfig, harness.SystemNamespace)
	return kubectl.Must(t, input, append([]string{"exec", "-i", harness.ServerName + "-1", "--", "/knative-apiserver"}, args...)...)
}

// objectsOf returns the UIDs of all Knative objects in a namespace, by kind and name.
func objectsOf(t *testing.T, namespace string) map[string]types.UID {
	t.Helper()
	all := map[string]types.UID{}
	for _, kind := range harness.Kinds() {
		list, err := node.Admin.Dynamic.Resource(kind.GVR()).Namespace(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			all[kind.Kind+" "+list.Items[i].GetName()] = list.Items[i].GetUID()
		}
	}
	return all
}

// podsOf returns the UIDs of the Pods of a Service by name.
func podsOf(t *testing.T, namespace, service string) map[string]types.UID {
	t.Helper()
	list, err := node.Host.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "serving.knative.dev/service=" + service})
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]types.UID{}
	for i := range list.Items {
		all[list.Items[i].Name] = list.Items[i].UID
	}
	return all
}

// splitService is a Service with two Revisions that receive half of the requests each; the older one has a tag.
type splitService struct {
	stage     *stage
	name      string
	host, tag string
}

func newSplitService(t *testing.T, s *stage) *splitService {
	t.Helper()
	image, err := node.AppImage()
	if err != nil {
		t.Fatal(err)
	}
	split := &splitService{stage: s, name: "split-" + strings.ToLower(rand.Text()[:6])}
	services := node.Admin.Dynamic.Resource(harness.KindOf("Service").GVR()).Namespace(s.namespace)
	u := harness.KindOf("Service").Object(s.namespace, split.name)
	spec := func(target string) map[string]any {
		return map[string]any{"template": map[string]any{
			"metadata": map[string]any{"name": split.name + "-" + target},
			"spec": map[string]any{"containers": []any{map[string]any{
				"image": image, "env": []any{map[string]any{"name": "TARGET", "value": target}},
			}}},
		}}
	}
	u.Object["spec"] = spec("old")
	create(t, u)
	s.awaitReady(t, "Service", split.name, "url")
	eventually(t, patience, "the second Revision is asked for", func(ctx context.Context) error {
		u, err := services.Get(ctx, split.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		u.Object["spec"] = spec("new")
		u.Object["spec"].(map[string]any)["traffic"] = []any{
			map[string]any{"revisionName": split.name + "-old", "percent": int64(50), "tag": "before"},
			map[string]any{"revisionName": split.name + "-new", "percent": int64(50)},
		}
		_, err = services.Update(ctx, u, metav1.UpdateOptions{})
		return err
	})
	eventually(t, patience, "both Revisions have traffic", func(ctx context.Context) error {
		u, err := services.Get(ctx, split.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		observed, _, _ := unstructured.NestedInt64(u.Object, "status", "observedGeneration")
		traffic, _, _ := unstructured.NestedSlice(u.Object, "status", "traffic")
		if observed != u.GetGeneration() || len(traffic) != 2 {
			return fmt.Errorf("the status has traffic %v", traffic)
		}
		for _, target := range traffic {
			target, _ := target.(map[string]any)
			if address, _ := target["url"].(string); address != "" {
				split.tag = mustParse(t, address).Host
			}
		}
		if split.tag == "" {
			return errors.New("the tag has no address")
		}
		return nil
	})
	split.host = mustParse(t, s.awaitReady(t, "Service", split.name, "url")).Host
	return split
}

// discard deletes the Service, and waits until the garbage collector has deleted its dependents.
func (s *splitService) discard(t *testing.T) {
	t.Helper()
	harness.NewKubectl(t, node.Kubeconfig, s.stage.namespace).Must(t, "", "delete", "ksvc", s.name)
	selector := metav1.ListOptions{LabelSelector: "serving.knative.dev/service=" + s.name}
	eventually(t, patience, "all objects of the Service are deleted", func(ctx context.Context) error {
		for _, kind := range []string{"Configuration", "Route", "Revision"} {
			list, err := node.Admin.Dynamic.Resource(harness.KindOf(kind).GVR()).Namespace(s.stage.namespace).List(ctx, selector)
			if err != nil {
				return err
			}
			if len(list.Items) > 0 {
				return fmt.Errorf("%s %s exists", kind, list.Items[0].GetName())
			}
		}
		deployments, err := node.Host.AppsV1().Deployments(s.stage.namespace).List(ctx, selector)
		if err != nil {
			return err
		}
		if len(deployments.Items) > 0 {
			return fmt.Errorf("Deployment %s exists", deployments.Items[0].Name)
		}
		return nil
	})
}

// splitLoad sends requests to a splitService.
type splitLoad struct {
	stopping chan struct{}
	ended    chan struct{}
	first    time.Time
	failures []string
	answers  map[string]int
	rounds   atomic.Int64
}

// grace is the time for which requests may fail after the first answered one: gateways try to read objects once a second, with jitter.
const grace = 3 * time.Second

// watch starts the requests, and returns once one was answered.
func (s *splitService) watch(t *testing.T) *splitLoad {
	t.Helper()
	l := &splitLoad{stopping: make(chan struct{}), ended: make(chan struct{}), answers: map[string]int{}}
	// Requests wait while a Revision starts its first Pod.
	client := node.HTTPClient(patience)
	get := func(ctx context.Context, host string) (string, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+"/", http.NoBody)
		if err != nil {
			return "", err
		}
		return do(client, request, http.StatusOK)
	}
	eventually(t, recovery, "the restored Service is served", func(ctx context.Context) error {
		_, err := get(ctx, s.host)
		return err
	})
	l.first = time.Now()
	go func() {
		defer close(l.ended)
		ticker := time.NewTicker(requestEvery)
		defer ticker.Stop()
		for {
			for _, host := range []string{s.host, s.tag} {
				body, err := get(context.WithoutCancel(t.Context()), host)
				switch {
				case err == nil && host == s.tag:
					l.answers["tag: "+strings.TrimSpace(body)]++
				case err == nil:
					l.answers[strings.TrimSpace(body)]++
				case time.Since(l.first) > grace:
					l.failures = append(l.failures, fmt.Sprintf("%s after %s: %v", host, time.Since(l.first).Round(time.Millisecond), err))
				}
			}
			l.rounds.Add(1)
			select {
			case <-l.stopping:
				return
			case <-ticker.C:
			}
		}
	}()
	return l
}

// enoughRounds is the number of requests after which both halves of the traffic have received some: the probability that all
// are in one half is 2^-49.
const enoughRounds = 50

// stop verifies that no request failed, and that both Revisions answered.
func (l *splitLoad) stop(t *testing.T) {
	t.Helper()
	eventually(t, recovery, "both halves of the traffic have received requests", func(context.Context) error {
		if rounds := l.rounds.Load(); rounds < enoughRounds {
			return fmt.Errorf("%d of %d requests were sent", rounds, enoughRounds)
		}
		return nil
	})
	close(l.stopping)
	<-l.ended
	t.Logf("answers: %v", l.answers)
	if len(l.failures) > 0 {
		t.Errorf("%d requests failed, the first ones:\n%s", len(l.failures), strings.Join(l.failures[:min(len(l.failures), keptFailures)], "\n"))
	}
	for _, answer := range []string{"Hello old!", "Hello new!", "tag: Hello old!"} {
		if l.answers[answer] == 0 {
			t.Errorf("no request was answered with %q", answer)
		}
	}
}

// heldChannel is a Channel with undelivered events.
type heldChannel struct{ *held }

func holdChannelEvents(t *testing.T, s *stage) *heldChannel {
	t.Helper()
	h := newHeld(t, s)
	create(t, harness.KindOf("Channel").Object(s.namespace, h.name))
	subscription := harness.KindOf("Subscription").Object(s.namespace, h.name)
	subscription.Object["spec"] = map[string]any{
		"channel":    map[string]any{"apiVersion": "messaging.knative.dev/v1", "kind": "Channel", "name": h.name},
		"subscriber": map[string]any{"ref": map[string]any{"apiVersion": "v1", "kind": "Service", "name": h.name}},
		"delivery":   map[string]any{"retry": int64(1000), "backoffPolicy": "linear", "backoffDelay": "PT1S"},
	}
	create(t, subscription)
	s.awaitReady(t, "Subscription", h.name, "physicalSubscription", "subscriberUri")
	// The subscribers of a Channel are written for many Subscriptions at once, shortly after they are Ready.
	eventually(t, patience, "the Channel lists its subscriber", func(ctx context.Context) error {
		channel, err := node.Admin.Dynamic.Resource(harness.KindOf("Channel").GVR()).Namespace(s.namespace).Get(ctx, h.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if subscribers, _, _ := unstructured.NestedSlice(channel.Object, "spec", "subscribers"); len(subscribers) != 1 {
			return fmt.Errorf("its subscribers are %v", subscribers)
		}
		return nil
	})
	// Addressed by the path of Channels at the ingress.
	h.fill(t, "/channels/"+s.namespace+"/"+h.name)
	return &heldChannel{h}
}

// discard deletes the Channel with its events, and the Subscription.
func (h *heldChannel) discard(t *testing.T) { h.discardKinds(t, "Channel", "Subscription") }
