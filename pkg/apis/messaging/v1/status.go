package v1

import duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"

// GetStatus returns the part of the status that all kinds share.
func (c *Channel) GetStatus() *duckv1.Status { return &c.Status.Status }

// GetStatus returns the part of the status that all kinds share.
func (s *Subscription) GetStatus() *duckv1.Status { return &s.Status.Status }
