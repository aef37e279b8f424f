package history

import "fmt"

// checkConcurrency checks that no backend ever had more requests than containerConcurrency.
func (h *History) checkConcurrency() []string {
	var found []string
	for _, a := range h.Answers {
		if a.Most > a.Limit {
			found = append(found, fmt.Sprintf("a backend of %s with containerConcurrency %d had %d requests at a time by %s", a.Service, a.Limit, a.Most, a.At))
		}
	}
	return found
}

// checkOrigins checks that no content of another namespace was seen.
func (h *History) checkOrigins() []string {
	var found []string
	for _, o := range h.Origins {
		if o.Want != o.Got {
			found = append(found, fmt.Sprintf("%s of namespace %s has content of namespace %q", o.Place, o.Want, o.Got))
		}
	}
	return found
}
