package process

import (
	"cmp"
	"errors"
	"path"
	"slices"
	"strings"
)

// helperName is argv[0] of this program when it starts a container with volumes: the process mounts the volumes and then
// executes the container's program.
const helperName = "knative-apiserver-mount"

// errNoNamespaces is returned if the server has no right to mount.
var errNoNamespaces = errors.New("the server can mount volumes neither as root nor in a user namespace: run it as root, " +
	"or allow it user namespaces (user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns)")

// mount is one mount of a container.
type mount struct {
	// Volume is the directory of the volume on this machine, SubPath the mounted part of it, Target the path in the
	// container.
	Volume, SubPath, Target string
	ReadOnly                bool
	// Writable is true for volumes in which a missing SubPath is created.
	Writable bool
}

// launch is the input of the helper.
type launch struct {
	// Staging is an empty directory to mount a new root on.
	Staging   string
	Mounts    []mount
	Argv, Env []string
	Dir       string
	User      *launchUser
	// Parent is the process ID of the server. The program is killed when the server exits.
	Parent int
}

type launchUser struct{ UID, GID uint32 }

// mounts returns the mounts of a container, parents before nested ones.
func (p *plan) mounts(c *container, v volumes) []mount {
	writable := map[string]bool{}
	for i := range p.volumes {
		writable[p.volumes[i].Name] = p.volumes[i].EmptyDir != nil
	}
	var all []mount
	for _, m := range c.VolumeMounts {
		all = append(all, mount{
			Volume: v.path(m.Name), SubPath: m.SubPath, Target: path.Clean(m.MountPath),
			ReadOnly: m.ReadOnly || !writable[m.Name], Writable: writable[m.Name],
		})
	}
	slices.SortStableFunc(all, func(a, b mount) int {
		return cmp.Or(cmp.Compare(strings.Count(a.Target, "/"), strings.Count(b.Target, "/")), cmp.Compare(a.Target, b.Target))
	})
	return all
}
