// Package origin names objects across restores of a snapshot.
//
// An object gets a new UID each time it is restored, because the garbage collector of a cluster remembers the UIDs of deleted
// owners and deletes whatever refers to them. A restored UID is the UID that the object was created with, followed by the ID
// of the restore: "6f0c1bd4-...-r0123456789". Anything that outlives a restore (events in the event log, Pods) is keyed by the
// original UID.
package origin

import (
	"fmt"
	"regexp"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// uidLength is the length of the UIDs that objects are created with.
	uidLength = len("00000000-0000-0000-0000-000000000000")
	// separator precedes the ID of a restore. No UUID contains it.
	separator = "-r"
)

// restoreIDs matches the IDs of restores. They are short enough for a restored UID to be the value of a label.
var restoreIDs = regexp.MustCompile(`^[0-9a-z]{10}$`)

// ValidateRestore returns an error unless id can identify a restore.
func ValidateRestore(id string) error {
	if !restoreIDs.MatchString(id) {
		return fmt.Errorf("restore ID %q must be 10 lower case letters and digits", id)
	}
	return nil
}

// UID returns the UID that an object had when it was created.
func UID(uid types.UID) types.UID {
	if len(uid) > uidLength && uid[uidLength:min(len(uid), uidLength+len(separator))] == separator {
		return uid[:uidLength]
	}
	return uid
}

// Restored returns the UID of an object after a restore.
func Restored(uid types.UID, restore string) types.UID {
	return UID(uid) + types.UID(separator+restore)
}
