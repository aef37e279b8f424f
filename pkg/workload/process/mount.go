package process

import (
	"cmp"
	"errors"
	"path"
	"slices"
	"strings"
)

// helperName is the name by which this program starts a container with volumes: as a process that mounts them for itself and
// then becomes the container's program.
const helperName = "knative-apiserver-mount"

// errNoNamespaces is the failure of a server that may not mount.
var errNoNamespaces = errors.New("the server can mount volumes neither as root nor in a user namespace: run it as root, " +
	"or allow it user namespaces (user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns)")

// mount is one mount of a container.
type mount struct {
	// Volume is the directory of the volume on this machine, SubPath the part of it to mount, Target where.
	Volume, SubPath, Target string
	ReadOnly                bool
	// Writable volumes get the directory SubPath if they have none.
	Writable bool
}

// launch is what the helper does.
type launch struct {
	// Staging is an empty directory for a new root.
	Staging   string
	Mounts    []mount
	Argv, Env []string
	Dir       string
	User      *launchUser
	// Parent is the process ID of the server, with which the program ends.
	Parent int
}

type launchUser struct{ UID, GID uint32 }

// mounts returns the mounts of a container, outer ones before those inside them.
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
