package destination

import (
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

func TestGrants(t *testing.T) {
	for name, row := range map[string]struct {
		grants          grants
		value           string
		exists          bool
		granted, denied bool
	}{
		"own namespace":              {grants: grants{namespace: "there"}, exists: true, granted: true},
		"missing in own namespace":   {grants: grants{namespace: "there"}, granted: true},
		"no annotation":              {grants: grants{namespace: "here"}, exists: true, denied: true},
		"missing in another":         {grants: grants{namespace: "here"}},
		"missing, with a value":      {grants: grants{namespace: "here"}, value: "*"},
		"listed":                     {grants: grants{namespace: "here"}, value: "a, here", exists: true, granted: true},
		"prefix of a listed one":     {grants: grants{namespace: "her"}, value: "here", exists: true, denied: true},
		"all namespaces":             {grants: grants{namespace: "here"}, value: "*", exists: true, granted: true},
		"no grants needed":           {grants: grants{namespace: "here", all: true}, exists: true, granted: true},
		"an earlier denial is kept":  {grants: grants{namespace: "here", denied: true}, value: "*", exists: true, granted: true, denied: true},
		"missing, earlier refusal":   {grants: grants{namespace: "here", denied: true}, denied: true},
		"missing, no grants needed":  {grants: grants{namespace: "here", all: true}, granted: true},
		"empty value, empty element": {grants: grants{namespace: "here"}, value: ",", exists: true, denied: true},
	} {
		t.Run(name, func(t *testing.T) {
			err := row.grants.check(coreService(types.NamespacedName{Namespace: "there", Name: "web"}), row.value, row.exists)
			var refused *Unresolved
			if granted := err == nil; granted != row.granted || !granted && (!errors.As(err, &refused) || refused.Reason != ReasonNotGranted) {
				t.Errorf("granted is %t with error %v, want %t", granted, err, row.granted)
			}
			if row.grants.denied != row.denied {
				t.Errorf("denied is %t, want %t", row.grants.denied, row.denied)
			}
		})
	}
}
