package destination

import (
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// state is the part of a referenced object that references depend on. It shares memory with the object.
type state struct {
	// address is nil, and addresses are empty, if the object has none.
	address   *duckv1.Addressable
	addresses []duckv1.Addressable
	// ready is the Ready condition of the object's current generation, or nil.
	ready *duckv1.Condition
	// granted are the other namespaces whose objects may refer to this one, by AllowFromAnnotationKey.
	granted string
}

// pick returns the address that a reference requests: the one with its name, or the first of status.addresses,
// or status.address.
func (s state) pick(ref *duckv1.KReference) (duckv1.Addressable, error) {
	all := slices.Clone(s.addresses)
	if s.address != nil {
		all = append(all, *s.address)
	}
	all = slices.DeleteFunc(all, func(a duckv1.Addressable) bool { return a.URL == "" })
	if ref.Address != nil {
		i := slices.IndexFunc(all, func(a duckv1.Addressable) bool { return ptr.Deref(a.Name, "") == *ref.Address })
		if i < 0 {
			return duckv1.Addressable{}, unresolved(ReasonNotAddressable, "%s has no address named %q", describe(ref), *ref.Address)
		}
		return all[i], nil
	}
	if len(all) == 0 {
		return duckv1.Addressable{}, unresolved(ReasonNotAddressable, "%s has no address in status.address.url yet", describe(ref))
	}
	return all[0], nil
}

// stateOf reads an object of the host cluster.
func stateOf(ref *duckv1.KReference, obj *unstructured.Unstructured) (state, error) {
	content, _, err := unstructured.NestedMap(obj.Object, "status")
	if err != nil {
		return state{}, unresolved(ReasonNotAddressable, "%s has a status that is no object", describe(ref))
	}
	var addresses struct {
		Address   *duckv1.Addressable  `json:"address"`
		Addresses []duckv1.Addressable `json:"addresses"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, &addresses); err != nil {
		return state{}, unresolved(ReasonNotAddressable, "%s has a status.address of another form: %v", describe(ref), err)
	}
	var status duckv1.Status
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, &status); err != nil {
		// Conditions in another form do not affect the address.
		status = duckv1.Status{}
	}
	found := state{address: addresses.Address, addresses: addresses.Addresses}
	// Not every kind reports the generation it observed.
	if status.ObservedGeneration == 0 || status.ObservedGeneration == obj.GetGeneration() {
		found.ready = status.Conditions.Get(duckv1.ConditionReady)
	}
	return found, nil
}
