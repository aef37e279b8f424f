package ownership

import "github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"

// rendezvous returns the owner of a key: the member with the highest weight. When a member joins or leaves, only its own keys
// change owners. Without members, the calling replica is the owner.
func rendezvous(set *membership.Set, key string) membership.Member {
	members := set.Members()
	if len(members) == 0 {
		return membership.Member{Name: set.Self()}
	}
	best, highest := 0, uint64(0)
	for i := range members {
		if weight := weigh(members[i].Name, key); i == 0 || weight > highest {
			best, highest = i, weight
		}
	}
	return members[best]
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
