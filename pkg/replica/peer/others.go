package peer

import (
	"fmt"
	"slices"
	"sync"

	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
)

// AskOthers calls ask for each other replica of a view, all at the same time. wait returns when all calls have returned, with a sentence about each replica
// whose call failed, sorted. A nil view has no other replica.
func AskOthers(view *membership.View, ask func(to membership.Member) error) (wait func() (failed []string)) {
	if view == nil {
		return func() []string { return nil }
	}
	var asking sync.WaitGroup
	var mu sync.Mutex
	var failed []string
	set := view.Current()
	for _, member := range set.Members() {
		if member.Name == set.Self() {
			continue
		}
		asking.Go(func() {
			if err := ask(member); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed = append(failed, fmt.Sprintf("replica %s does not answer", member.Name))
			}
		})
	}
	return func() []string {
		asking.Wait()
		slices.Sort(failed)
		return failed
	}
}
