package serving

import (
	"net/http"
	"testing"

	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// TestSplitIsNotSticky checks that the requests of one client on one connection are split by the weights, although one Revision
// has three times the backends of the other (serving 8-1, 8-2, 8-6, 8-9, 8-10).
func TestSplitIsNotSticky(t *testing.T) {
	t.Parallel()
	const requests = 2000
	s := shared.newSite(t, "split", revisionName("most"), env("TARGET", "most"), instances("1"))
	s.deploy(t, app(t, s.namespace, s.name, revisionName("few"), env("TARGET", "few"), instances("3"), traffic(
		servingv1.TrafficTarget{RevisionName: "split-most", Percent: ptr.To(int64(90))},
		servingv1.TrafficTarget{RevisionName: "split-few", Percent: ptr.To(int64(10))},
	)))
	w := s.mustDial(t)
	client := s.h2(t)
	for protocol, send := range map[string]func() (*answer, error){
		"HTTP/1.1": func() (*answer, error) { return w.exchange(http.MethodGet, get(s.host, "/")) },
		"h2c":      func() (*answer, error) { return ask(t.Context(), client, http.MethodGet, s.url+"/", nil) },
	} {
		t.Run(protocol, func(t *testing.T) {
			counts := map[string]int{}
			longest, run := 0, 0
			for range requests {
				a, err := send()
				if err != nil || a.code != http.StatusOK {
					t.Fatalf("a request got %+v, %v", a, err)
				}
				counts[a.body]++
				if run++; a.body == "Hello few!\n" {
					run = 0
				}
				longest = max(longest, run)
			}
			few := counts["Hello few!\n"]
			if share := float64(few) / requests * 100; share < 9.5 || share > 10.5 || few+counts["Hello most!\n"] != requests {
				t.Errorf("of %d requests by one connection each revision got %v, want 10 %% for the first", requests, counts)
			}
			// At most two blocks of a hundred lie between two blocks of ten.
			if longest > 200 {
				t.Errorf("%d requests in a row went to one revision", longest)
			}
		})
	}
}
