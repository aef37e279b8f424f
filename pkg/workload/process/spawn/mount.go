package spawn

import "errors"

// helperName is argv[0] of this program when it starts a container with volumes: the process mounts the volumes and then
// executes the container's program.
const helperName = "knative-apiserver-mount"

// ErrNoNamespaces is returned if the server has no right to mount.
var ErrNoNamespaces = errors.New("the server can mount volumes neither as root nor in a user namespace: run it as root, " +
	"or allow it user namespaces (user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns)")

// Mount is one mount of a program.
type Mount struct {
	// Volume is the directory of the volume on this machine, SubPath the mounted part of it, Target the path that the
	// program sees.
	Volume, SubPath, Target string
	ReadOnly                bool
	// Writable is true for volumes in which a missing SubPath is created.
	Writable bool
}

// launch is the input of the helper.
type launch struct {
	// Staging is an empty directory to mount a new root on.
	Staging   string
	Mounts    []Mount
	Argv, Env []string
	Dir       string
	User      *User
	// Parent is the process ID of the server. The program is killed when the server exits.
	Parent int
}
