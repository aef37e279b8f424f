package ownership

import (
	"cmp"
	"slices"

	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
)

// rendezvous returns the owner of a key: the member with the highest weight, or of a lower rank. When a member joins or leaves, only keys
// that it owns change owners, and keys of a lower rank. Without members, the calling replica is the owner.
func rendezvous(set *membership.Set, at Place) membership.Member {
	members := set.Members()
	if len(members) == 0 {
		return membership.Member{Name: set.Self()}
	}
	if rank := at.Rank % len(members); rank > 0 {
		return ranked(members, at.Name)[rank]
	}
	best, highest := 0, uint64(0)
	for i := range members {
		if weight := weigh(members[i].Name, at.Name); i == 0 || weight > highest {
			best, highest = i, weight
		}
	}
	return members[best]
}

// ranked returns members by falling weight.
func ranked(members []membership.Member, key string) []membership.Member {
	members = slices.Clone(members)
	// Of equal weights, the first one in the membership comes first, as in rendezvous.
	slices.SortStableFunc(members, func(a, b membership.Member) int { return cmp.Compare(weigh(b.Name, key), weigh(a.Name, key)) })
	return members
}

// weigh returns the finalized FNV-1a hash of a member and a key. No library replaces it: another hash moves two of three keys,
// and replicas of both versions disagree about their owners for the whole of a rolling upgrade.
func weigh(member, key string) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211
	h := uint64(offset)
	for _, s := range []string{member, "\x00", key} {
		for i := range len(s) {
			h = (h ^ uint64(s[i])) * prime
		}
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
