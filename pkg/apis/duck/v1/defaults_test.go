package v1

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDeliveryDefaults(t *testing.T) {
	sink := func(r *KReference) *DeliverySpec { return &DeliverySpec{DeadLetterSink: &Destination{Ref: r}} }
	tests := []struct {
		name     string
		in, want *DeliverySpec
	}{
		{"left out", nil, nil},
		{"empty", &DeliverySpec{}, &DeliverySpec{}},
		{"no reference", sink(nil), sink(nil)},
		{"placeholder", sink(&KReference{Name: "a"}), sink(&KReference{Name: "a"})},
		{"own namespace", sink(&KReference{Kind: "Service", Name: "a"}), sink(&KReference{Kind: "Service", Name: "a", Namespace: "shop"})},
		{"other namespace", sink(&KReference{Kind: "Service", Namespace: "b"}), sink(&KReference{Kind: "Service", Namespace: "b"})},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.in.SetDefaults("shop")
			if diff := cmp.Diff(tt.want, tt.in); diff != "" {
				t.Errorf("defaults (-want +got):\n%s", diff)
			}
		})
	}
}
