package origin

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation"
)

// TestUID restores an object several times, and checks that each UID is new, has the same origin, and is a valid label.
func TestUID(t *testing.T) {
	created := uuid.NewUUID()
	seen := map[types.UID]bool{created: true}
	uid := created
	for _, restore := range []string{"0123456789", "abcdefghij", "0000000000"} {
		if err := ValidateRestore(restore); err != nil {
			t.Fatal(err)
		}
		uid = Restored(uid, restore)
		if seen[uid] {
			t.Errorf("UID %s was used before", uid)
		}
		seen[uid] = true
		if repeated := Restored(uid, restore); repeated != uid {
			t.Errorf("repeating the restore yields %s, want %s", repeated, uid)
		}
		if got := UID(uid); got != created {
			t.Errorf("origin of %s is %s, want %s", uid, got, created)
		}
		if faults := validation.IsValidLabelValue(string(uid)); len(faults) > 0 {
			t.Errorf("UID %s is not a label value: %v", uid, faults)
		}
	}
	for _, uid := range []types.UID{"", "uid-1", "a-r0123456789", created, created + "x", created + "-"} {
		if got := UID(uid); got != uid {
			t.Errorf("origin of %q is %q, want it unchanged", uid, got)
		}
	}
}

// TestValidateRestore rejects IDs that do not fit into a UID.
func TestValidateRestore(t *testing.T) {
	for _, id := range []string{"", "012345678", "01234567890", "ABCDEFGHIJ", "01234-6789", "012345678\n"} {
		if err := ValidateRestore(id); err == nil {
			t.Errorf("restore ID %q is accepted", id)
		}
	}
}
