package v1

import (
	"math"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// TestRevisionNumbers covers serving 9.4.2-3 and 9.4.2-4.
// It covers serving 5.1-4 and 9-5.
func TestRevisionNumbers(t *testing.T) {
	numbers := func(change func(s *RevisionSpec)) func(*RevisionSpec) { return change }
	runTemplateCases(t, []templateCase{
		{name: "9.4.2-4: containerConcurrency 0", change: numbers(func(s *RevisionSpec) { s.ContainerConcurrency = ptr.To[int64](0) })},
		{name: "9.4.2-4: containerConcurrency 1000", change: numbers(func(s *RevisionSpec) { s.ContainerConcurrency = ptr.To[int64](1000) })},
		{
			name: "containerConcurrency 1001", change: numbers(func(s *RevisionSpec) { s.ContainerConcurrency = ptr.To[int64](1001) }),
			want: []fault{invalid("containerConcurrency", "must be between 0 and 1000")},
		},
		{
			name: "containerConcurrency -1", change: numbers(func(s *RevisionSpec) { s.ContainerConcurrency = ptr.To[int64](-1) }),
			want: []fault{invalid("containerConcurrency", "")},
		},
		{name: "9.4.2-3: timeoutSeconds 1", change: numbers(func(s *RevisionSpec) { s.TimeoutSeconds = ptr.To[int64](1) })},
		{name: "9.4.2-3: timeoutSeconds 600", change: numbers(func(s *RevisionSpec) { s.TimeoutSeconds = ptr.To[int64](600) })},
		{name: "9.4.2-3: timeoutSeconds 0, the default", change: numbers(func(s *RevisionSpec) { s.TimeoutSeconds = ptr.To[int64](0) })},
		{
			name: "timeoutSeconds -1", change: numbers(func(s *RevisionSpec) { s.TimeoutSeconds = ptr.To[int64](-1) }),
			want: []fault{invalid("timeoutSeconds", "must be between 1 and 600")},
		},
		{
			name: "timeoutSeconds 601", change: numbers(func(s *RevisionSpec) { s.TimeoutSeconds = ptr.To[int64](601) }),
			want: []fault{invalid("timeoutSeconds", "")},
		},
		{name: "parts of the timeout", change: numbers(func(s *RevisionSpec) {
			s.ResponseStartTimeoutSeconds, s.IdleTimeoutSeconds = ptr.To[int64](0), ptr.To[int64](300)
		})},
		{
			name: "parts longer than the whole",
			change: numbers(func(s *RevisionSpec) {
				s.ResponseStartTimeoutSeconds, s.IdleTimeoutSeconds = ptr.To[int64](301), ptr.To[int64](-1)
			}),
			want: []fault{
				invalid("responseStartTimeoutSeconds", "between 0 and timeoutSeconds (300)"), invalid("idleTimeoutSeconds", ""),
			},
		},
		{
			name: "with an invalid timeout, the limit bounds its parts",
			change: numbers(func(s *RevisionSpec) {
				s.TimeoutSeconds = ptr.To[int64](math.MinInt64)
				s.ResponseStartTimeoutSeconds, s.IdleTimeoutSeconds = ptr.To[int64](600), ptr.To[int64](math.MaxInt64)
			}),
			want: []fault{invalid("timeoutSeconds", ""), invalid("idleTimeoutSeconds", "between 0 and 600")},
		},
	})
}

func TestMaxTimeoutSecondsIsTheOperators(t *testing.T) {
	s, st := newService(), DefaultSettings()
	s.Spec.Template.Spec.TimeoutSeconds = ptr.To[int64](3600)
	SetDefaults_Service(s)
	checkFaults(t, ValidateService(s, st), invalid("spec.template.spec.timeoutSeconds", ""))
	st.MaxTimeoutSeconds = 3600
	checkFaults(t, ValidateService(s, st))
}

func TestValidateRevision(t *testing.T) {
	r := newRevision()
	checkFaults(t, ValidateRevision(r, DefaultSettings()))
	r.Spec.Containers[0].TTY = true
	checkFaults(t, ValidateRevision(r, DefaultSettings()), forbidden("spec.containers[0].tty", "may not be set"))
	// A stored spec remains valid, even if a later rule would reject it.
	checkFaults(t, ValidateRevisionUpdate(r, r.DeepCopy()))
}

func TestRevisionSpecIsImmutable(t *testing.T) {
	old := newRevision()
	old.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1000m")}
	same := old.DeepCopy()
	same.Annotations = map[string]string{"a": "b"}
	same.Spec.Containers[0].Resources.Limits[corev1.ResourceCPU] = resource.MustParse("1")
	checkFaults(t, ValidateRevisionUpdate(same, old))

	changed := old.DeepCopy()
	changed.Spec.TimeoutSeconds = ptr.To[int64](7)
	changed.Spec.Containers[0].Args = []string{"-v"}
	got := ValidateRevisionUpdate(changed, old)
	checkFaults(t, got, forbidden("spec", "may not change"))
	const diff = "(-old +new):\n+containers[0].args[0]: \"-v\"\n-timeoutSeconds: 300\n+timeoutSeconds: 7"
	if !strings.HasSuffix(got[0].Detail, diff) {
		t.Errorf("detail %q does not end with %q", got[0].Detail, diff)
	}
}

func TestDescribeChangeIsBounded(t *testing.T) {
	long := strings.Repeat("ä", 1000)
	got := describeChange(map[string]string{"a": long}, map[string]string{"a": long + "b"})
	if n := len([]rune(got)); n > 2*(maxDiffValueRunes+20) {
		t.Errorf("%d characters", n)
	}
	many := map[string]int{}
	for i := range 100 {
		many[strings.Repeat("x", i+1)] = i
	}
	if got := describeChange(map[string]int{}, many); !strings.HasSuffix(got, "... and 60 lines more") {
		t.Errorf("got %s", got)
	}
}
