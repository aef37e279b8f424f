package controllers

import (
	"strconv"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// Generation returns the generation of the Configuration that a Revision was made from, or 0 if its label does
// not say (serving 9.2.1-4).
func Generation(revision *servingv1.Revision) int64 {
	generation, err := strconv.ParseInt(revision.Labels[servingv1.ConfigurationGenerationLabelKey], 10, 64)
	if err != nil {
		return 0
	}
	return generation
}
