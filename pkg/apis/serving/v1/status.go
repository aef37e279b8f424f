package v1

import duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"

// GetStatus returns the part of the status that all kinds share.
func (s *Service) GetStatus() *duckv1.Status { return &s.Status.Status }

// GetStatus returns the part of the status that all kinds share.
func (c *Configuration) GetStatus() *duckv1.Status { return &c.Status.Status }

// GetStatus returns the part of the status that all kinds share.
func (r *Route) GetStatus() *duckv1.Status { return &r.Status.Status }

// GetStatus returns the part of the status that all kinds share.
func (r *Revision) GetStatus() *duckv1.Status { return &r.Status.Status }
