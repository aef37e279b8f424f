package configuration

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/configuration/resources"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/internal/controllertest"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/revisionref"
)

var key = types.NamespacedName{Namespace: "default", Name: "hello"}

func newReconciler(t *testing.T, w *controllertest.Fixture) *Reconciler {
	t.Helper()
	revisions := w.Informers.Revisions().Informer()
	if err := reconciler.IndexByController(revisions); err != nil {
		t.Fatal(err)
	}
	return &Reconciler{
		Client:         w.Client.ServingV1(),
		Configurations: w.Informers.Configurations().Lister(),
		Revisions:      w.Informers.Revisions().Lister(),
		RevisionIndex:  revisions.GetIndexer(),
		Recorder:       w.Recorder,
		Clock:          w.Clock,
	}
}

// configuration returns a Configuration with a generation and an image.
func configuration(generation int64, image string, changes ...func(*servingv1.Configuration)) *servingv1.Configuration {
	c := &servingv1.Configuration{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: "uid"}}
	c.Spec.Template.Spec.Containers = []corev1.Container{{Image: image}}
	servingv1.SetDefaults_Configuration(c)
	c.Generation = generation
	for _, change := range changes {
		change(c)
	}
	return c
}

// recorded gives a Configuration the status of an earlier generation.
func recorded(created, ready string) func(*servingv1.Configuration) {
	return func(c *servingv1.Configuration) {
		c.Status.ObservedGeneration = c.Generation - 1
		c.Status.LatestCreatedRevisionName, c.Status.LatestReadyRevisionName = created, ready
	}
}

func named(name string) func(*servingv1.Configuration) {
	return func(c *servingv1.Configuration) { c.Spec.Template.Name = name }
}

// revision returns the Revision of a generation of a Configuration, in some state.
func revision(c *servingv1.Configuration, ready duckv1.Condition) *servingv1.Revision {
	r := resources.Revision(c, controllertest.Now)
	r.UID = types.UID(r.Name)
	r.Generation = 1
	r.Status.ObservedGeneration = 1
	r.Status.Conditions.Set(ready, metav1.NewTime(controllertest.Now))
	return r
}

var (
	succeeded = reconciler.True(duckv1.ConditionReady)
	pending   = reconciler.Unknown(duckv1.ConditionReady, revisionref.ReasonDeploying, "Starting.")
	failed    = reconciler.False(duckv1.ConditionReady, "ExitCode1", "Container failed with: boom.")
)

func statusOf(t *testing.T, w *controllertest.Fixture) servingv1.ConfigurationStatus {
	t.Helper()
	c, err := w.Client.ServingV1().Configurations(key.Namespace).Get(t.Context(), key.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return c.Status
}

// summary summarizes a status: Ready, its reason and message, latest created and ready.
type summary struct{ Status, Reason, Message, Created, Ready string }

func summarize(s servingv1.ConfigurationStatus) summary {
	got := summary{Created: s.LatestCreatedRevisionName, Ready: s.LatestReadyRevisionName}
	if c := s.Conditions.Get(duckv1.ConditionReady); c != nil {
		got.Status, got.Reason, got.Message = string(c.Status), c.Reason, c.Message
	}
	return got
}

// A new Configuration gets one Revision, an Event and a status in one write; reconciled again, nothing is written
// (serving 7.2-1 to 7.2-3, 9.2.3-3).
// It covers serving 5.3-2.
func TestCreate(t *testing.T) {
	w := controllertest.New(t, configuration(1, "hello"))
	r := newReconciler(t, w)
	write := []string{"create revisions", "update configurations/status"}
	for i, step := range []struct {
		sync bool
		want []string
	}{
		{sync: true, want: write},
		// The informers lag behind: existing objects are found.
		{sync: false, want: append(write, write...)},
		{sync: true, want: nil},
	} {
		if step.sync {
			w.Sync()
		}
		if err := controllertest.Reconcile(t.Context(), r, key); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(step.want, w.Writes()); diff != "" {
			t.Errorf("step %d: writes (-want +got):\n%s", i, diff)
		}
	}
	if diff := cmp.Diff([]string{`Normal Created Created Revision "hello-00001"`}, w.Events()); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(summary{Status: "Unknown", Created: "hello-00001"}, summarize(statusOf(t, w))); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
}

// Revisions are tracked in order of creation (serving 7.2-7), and Ready reports the current one. The message contains its error (serving 6-6).
func TestStatus(t *testing.T) {
	one, two, three := configuration(1, "one"), configuration(2, "two"), configuration(3, "three")
	for name, test := range map[string]struct {
		configuration *servingv1.Configuration
		revisions     []*servingv1.Revision
		want          summary
	}{
		"ready": {
			configuration(1, "one"), []*servingv1.Revision{revision(one, succeeded)},
			summary{Status: "True", Created: "hello-00001", Ready: "hello-00001"},
		},
		"the new one is not ready yet": {
			configuration(2, "two", recorded("hello-00001", "hello-00001")),
			[]*servingv1.Revision{revision(one, succeeded), revision(two, pending)},
			summary{Status: "Unknown", Created: "hello-00002", Ready: "hello-00001"},
		},
		"the new one fails": {
			configuration(2, "two", recorded("hello-00001", "hello-00001")),
			[]*servingv1.Revision{revision(one, succeeded), revision(two, failed)},
			summary{"False", "RevisionFailed", `Revision "hello-00002" failed with message: Container failed with: boom.`, "hello-00002", "hello-00001"},
		},
		"an intermediate one becomes ready while the new one is not": {
			configuration(3, "three", recorded("hello-00002", "hello-00001")),
			[]*servingv1.Revision{revision(one, succeeded), revision(two, succeeded), revision(three, pending)},
			summary{Status: "Unknown", Created: "hello-00003", Ready: "hello-00002"},
		},
		"the latest ready one fails later": {
			configuration(2, "two", recorded("hello-00002", "hello-00002")),
			[]*servingv1.Revision{revision(one, succeeded), revision(two, failed)},
			summary{"False", "RevisionFailed", `Revision "hello-00002" failed with message: Container failed with: boom.`, "hello-00002", "hello-00002"},
		},
		"the latest ready one was deleted, an older one exists": {
			configuration(3, "three", recorded("hello-00002", "hello-00002")),
			[]*servingv1.Revision{revision(one, succeeded), revision(three, pending)},
			summary{Status: "Unknown", Created: "hello-00003", Ready: "hello-00001"},
		},
		"the latest ready one was deleted, no other exists": {
			configuration(2, "two", recorded("hello-00001", "hello-00001")),
			[]*servingv1.Revision{revision(two, pending)},
			summary{"False", "RevisionDeleted", `Revision "hello-00001" was deleted.`, "hello-00002", "hello-00001"},
		},
		"it is not determined yet": {
			configuration(1, "one"),
			[]*servingv1.Revision{revision(one, reconciler.Unknown(duckv1.ConditionReady, "ResolvingDigests", "Asking."))},
			summary{Status: "Unknown", Reason: "ResolvingDigests", Message: "Asking.", Created: "hello-00001"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			objects := []runtime.Object{test.configuration}
			for _, revision := range test.revisions {
				objects = append(objects, revision)
			}
			w := controllertest.New(t, objects...)
			r := newReconciler(t, w)
			w.Sync()
			if err := controllertest.Reconcile(t.Context(), r, key); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, summarize(statusOf(t, w))); diff != "" {
				t.Errorf("status (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{"update configurations/status"}, w.Writes()); diff != "" {
				t.Errorf("writes (-want +got):\n%s", diff)
			}
		})
	}
}

// TestLabelsAreGivenBack checks that the labels that name a Revision's owners are restored (serving 9.2.1-3, 7.2-7).
func TestLabelsAreGivenBack(t *testing.T) {
	owner := configuration(1, "one")
	stripped := revision(owner, succeeded)
	delete(stripped.Labels, servingv1.ConfigurationLabelKey)
	stripped.Labels[servingv1.ConfigurationUIDLabelKey] = "another"
	w := controllertest.New(t, owner, stripped)
	r := newReconciler(t, w)
	for _, want := range [][]string{{"patch revisions", "update configurations/status"}, nil} {
		w.Sync()
		if err := controllertest.Reconcile(t.Context(), r, key); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, w.Writes()); diff != "" {
			t.Errorf("writes (-want +got):\n%s", diff)
		}
	}
	repaired, err := r.Client.Revisions(stripped.Namespace).Get(t.Context(), stripped.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(revision(owner, succeeded).Labels, repaired.Labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
}

// A rollback by name makes the older Revision the latest again, and it stays the latest ready one while the next is not
// ready, although Revisions created after it are (serving 7.2-7).
func TestRollback(t *testing.T) {
	a := configuration(1, "a", named("hello-a"))
	b := configuration(2, "b", named("hello-b"))
	w := controllertest.New(t, revision(a, succeeded), revision(b, succeeded),
		configuration(3, "a", named("hello-a"), recorded("hello-b", "hello-b")))
	r := newReconciler(t, w)
	step := func(want summary) {
		t.Helper()
		w.Sync()
		if err := controllertest.Reconcile(t.Context(), r, key); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, summarize(statusOf(t, w))); diff != "" {
			t.Errorf("status (-want +got):\n%s", diff)
		}
	}
	update := func(change func(*servingv1.Configuration)) {
		t.Helper()
		c, err := w.Client.ServingV1().Configurations(key.Namespace).Get(t.Context(), key.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		c.Generation++
		change(c)
		if _, err := w.Client.ServingV1().Configurations(key.Namespace).Update(t.Context(), c, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	step(summary{Status: "True", Created: "hello-a", Ready: "hello-a"})

	update(func(c *servingv1.Configuration) { c.Spec.Template.Name = "" })
	step(summary{Status: "Unknown", Created: "hello-00004", Ready: "hello-a"})

	w.Sync()
	made, err := w.Client.ServingV1().Revisions(key.Namespace).Get(t.Context(), "hello-00004", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made.Status.Conditions.Set(succeeded, metav1.NewTime(controllertest.Now))
	if _, err := w.Client.ServingV1().Revisions(key.Namespace).UpdateStatus(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	step(summary{Status: "True", Created: "hello-00004", Ready: "hello-00004"})
	if annotations := statusOf(t, w).Annotations; len(annotations) > 0 {
		t.Errorf("annotations of a status that needs none: %v", annotations)
	}
}

// The name of a Revision with another owner or another spec is not used (serving 7.0.1-2, 7.2-5), whether or not the informers have the Revision.
func TestRevisionNameInUse(t *testing.T) {
	foreign := revision(configuration(1, "one", named("hello-a")), succeeded)
	foreign.OwnerReferences[0].UID = "another"
	other := revision(configuration(1, "one", named("hello-a")), pending)
	for name, test := range map[string]struct {
		revision *servingv1.Revision
		message  string
	}{
		"by another owner":  {foreign, `There is an existing Revision "hello-a" that we do not own.`},
		"by something else": {other, `There is an existing Revision "hello-a" of an earlier template that runs something else; choose another name.`},
	} {
		for _, known := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				w := controllertest.New(t, configuration(2, "two", named("hello-a"), recorded("hello-00001", "")))
				r := newReconciler(t, w)
				if !known {
					w.Sync()
				}
				if err := w.Client.Tracker().Add(test.revision); err != nil {
					t.Fatal(err)
				}
				if known {
					w.Sync()
				}
				if err := controllertest.Reconcile(t.Context(), r, key); err != nil {
					t.Fatal(err)
				}
				want := summary{"False", revisionref.ReasonRevisionNameInUse, test.message, "hello-00001", ""}
				if diff := cmp.Diff(want, summarize(statusOf(t, w))); diff != "" {
					t.Errorf("status (-want +got):\n%s", diff)
				}
			})
		}
	}
}
