package v1

import (
	"math"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func percent(n int64) *int64 { return ptr.To(n) }

// trafficCases apply to Routes and, with the Configuration implied, to Services.
func trafficCases() []struct {
	name    string
	traffic []TrafficTarget
	want    []fault
} {
	return []struct {
		name    string
		traffic []TrafficTarget
		want    []fault
	}{
		{name: "9.3.2-1: none means the default"},
		{
			name: "10.2-9: percents sum to 100",
			traffic: []TrafficTarget{
				{RevisionName: "hello-1", Percent: percent(99)}, {RevisionName: "hello-2", Percent: percent(1)}, {RevisionName: "hello-3", Tag: "old"},
			},
		},
		{name: "one revision twice", traffic: []TrafficTarget{
			{RevisionName: "hello-1", Percent: percent(50), Tag: "a"}, {RevisionName: "hello-1", Percent: percent(50), Tag: "b"},
		}},
		{
			name:    "10.2-9: less than 100",
			traffic: []TrafficTarget{{RevisionName: "hello-1", Percent: percent(60)}, {RevisionName: "hello-2", Percent: percent(39)}},
			want:    []fault{invalid("spec.traffic", "percents must sum to 100, not 99")},
		},
		{
			name:    "10.2-9: more than 100",
			traffic: []TrafficTarget{{RevisionName: "hello-1", Percent: percent(60)}, {RevisionName: "hello-2", Percent: percent(41)}},
			want:    []fault{invalid("spec.traffic", "not 101")},
		},
		{
			name:    "10.2-8: empty",
			traffic: []TrafficTarget{{RevisionName: "hello-1"}},
			want:    []fault{invalid("spec.traffic", "not 0")},
		},
		{
			name: "10.2: percent out of range, without an error about the sum",
			traffic: []TrafficTarget{
				{RevisionName: "hello-1", Percent: percent(-1)}, {RevisionName: "hello-2", Percent: percent(101)},
				{RevisionName: "hello-3", Percent: percent(math.MaxInt64)}, {RevisionName: "hello-4", Percent: percent(math.MaxInt64)},
				{RevisionName: "hello-5", Percent: percent(math.MinInt64)},
			},
			want: []fault{
				invalid("spec.traffic[0].percent", "between 0 and 100"), invalid("spec.traffic[1].percent", ""),
				invalid("spec.traffic[2].percent", ""), invalid("spec.traffic[3].percent", ""), invalid("spec.traffic[4].percent", ""),
			},
		},
		{
			name: "10.2-7: tags",
			traffic: []TrafficTarget{
				{RevisionName: "hello-1", Percent: percent(100), Tag: "a"}, {RevisionName: "hello-2", Tag: "a"}, {RevisionName: "hello-3", Tag: "B.c"},
			},
			want: []fault{duplicate("spec.traffic[1].tag"), invalid("spec.traffic[2].tag", "lower case")},
		},
		{
			name: "10.2-3, 10.2-4: latestRevision contradicts revisionName",
			traffic: []TrafficTarget{
				{RevisionName: "hello-1", Percent: percent(100), LatestRevision: ptr.To(true)},
				{RevisionName: "hello-1", LatestRevision: ptr.To(false)},
			},
			want: []fault{invalid("spec.traffic[0].latestRevision", "must be false when revisionName is set")},
		},
		{
			name:    "10.2-10: url is not input",
			traffic: []TrafficTarget{{RevisionName: "hello-1", Percent: percent(100), URL: "http://x"}},
			want:    []fault{forbidden("spec.traffic[0].url", "may not be set in spec")},
		},
		{
			name:    "names",
			traffic: []TrafficTarget{{RevisionName: "Hello_1", Percent: percent(100)}},
			want:    []fault{invalid("spec.traffic[0].revisionName", "lower case")},
		},
	}
}

func TestTrafficOfRoutesAndServices(t *testing.T) {
	for _, tc := range trafficCases() {
		t.Run(tc.name, func(t *testing.T) {
			r, s := newRoute(), newService()
			r.Spec.Traffic = tc.traffic
			s.Spec.RouteSpec = *r.Spec.DeepCopy()
			SetDefaults_Route(r)
			SetDefaults_Service(s)
			checkFaults(t, ValidateRoute(r, DefaultSettings()), tc.want...)
			checkFaults(t, ValidateRouteUpdate(r, newRoute(), DefaultSettings()), tc.want...)
			checkFaults(t, ValidateService(s, DefaultSettings()), tc.want...)
		})
	}
}

// TestDestinations covers serving 10.2-1, 10.2-2 and 10.2-3.
func TestDestinations(t *testing.T) {
	for _, tc := range []struct {
		name                   string
		target                 TrafficTarget
		wantRoute, wantService []fault
	}{
		{
			name:        "10.2-2: configurationName",
			target:      TrafficTarget{ConfigurationName: "hello"},
			wantService: []fault{forbidden("spec.traffic[0].configurationName", "may not be set in a Service")},
		},
		{
			name:        "10.2-1: both names",
			target:      TrafficTarget{ConfigurationName: "hello", RevisionName: "hello-1"},
			wantRoute:   []fault{forbidden("spec.traffic[0].configurationName", "may not be set together with revisionName")},
			wantService: []fault{forbidden("spec.traffic[0].configurationName", "may not be set in a Service")},
		},
		{
			name:      "neither name",
			target:    TrafficTarget{LatestRevision: ptr.To(true)},
			wantRoute: []fault{required("spec.traffic[0]", "exactly one of revisionName and configurationName")},
		},
		{
			name:        "bad configurationName",
			target:      TrafficTarget{ConfigurationName: "Hello"},
			wantRoute:   []fault{invalid("spec.traffic[0].configurationName", "lower case")},
			wantService: []fault{forbidden("spec.traffic[0].configurationName", "")},
		},
		{
			name:        "10.2-3: latest without a name",
			target:      TrafficTarget{LatestRevision: ptr.To(false)},
			wantRoute:   []fault{required("spec.traffic[0]", ""), invalid("spec.traffic[0].latestRevision", "must be true when revisionName is empty")},
			wantService: []fault{invalid("spec.traffic[0].latestRevision", "must be true when revisionName is empty")},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.target.Percent = percent(100)
			r, s := newRoute(), newService()
			r.Spec.Traffic = []TrafficTarget{tc.target}
			s.Spec.Traffic = []TrafficTarget{tc.target}
			SetDefaults_Route(r)
			SetDefaults_Service(s)
			checkFaults(t, ValidateRoute(r, DefaultSettings()), tc.wantRoute...)
			checkFaults(t, ValidateService(s, DefaultSettings()), tc.wantService...)
		})
	}
}

func TestRouteThatIsBeingDeleted(t *testing.T) {
	r := newRoute()
	r.Spec.Traffic = []TrafficTarget{{}}
	checkFaults(t, ValidateRouteUpdate(r, r.DeepCopy(), DefaultSettings()), required("spec.traffic[0]", ""), invalid("spec.traffic", ""))
	r.DeletionTimestamp = &metav1.Time{}
	checkFaults(t, ValidateRouteUpdate(r, r.DeepCopy(), DefaultSettings()))
}
