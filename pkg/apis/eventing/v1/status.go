package v1

import duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"

// GetStatus returns the part of the status that all kinds share.
func (b *Broker) GetStatus() *duckv1.Status { return &b.Status.Status }

// GetStatus returns the part of the status that all kinds share.
func (t *Trigger) GetStatus() *duckv1.Status { return &t.Status.Status }
