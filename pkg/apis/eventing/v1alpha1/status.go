package v1alpha1

import duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"

// GetStatus returns the part of the status that all kinds share.
func (p *EventPolicy) GetStatus() *duckv1.Status { return &p.Status.Status }

// GetStatus returns the part of the status that all kinds share.
func (r *EventRun) GetStatus() *duckv1.Status { return &r.Status.Status }
