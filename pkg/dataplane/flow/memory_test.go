package flow

import (
	"testing"
	"testing/fstest"
)

func TestMemoryLimit(t *testing.T) {
	const machine = 8 << 30
	for name, test := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"no cgroup": {nil, machine},
		"version 2, the least of all levels": {map[string]string{
			"proc/self/cgroup":                           "0::/kubepods/pod1/app\n",
			"sys/fs/cgroup/kubepods/memory.max":          "4294967296\n",
			"sys/fs/cgroup/kubepods/pod1/memory.max":     "2147483648\n",
			"sys/fs/cgroup/kubepods/pod1/app/memory.max": "max\n",
		}, 2 << 30},
		"version 2, in a namespace of its own": {map[string]string{
			"proc/self/cgroup":         "0::/../../host/path\n",
			"sys/fs/cgroup/memory.max": "1073741824\n",
		}, 1 << 30},
		"version 1": {map[string]string{
			"proc/self/cgroup": "9:name=systemd:/\n4:memory:/docker/1\n0::/\n",
			"sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes": "536870912\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":          "9223372036854771712\n",
		}, 512 << 20},
		"more than the machine has": {map[string]string{
			"proc/self/cgroup":         "0::/\n",
			"sys/fs/cgroup/memory.max": "9223372036854771712\n",
		}, machine},
	} {
		t.Run(name, func(t *testing.T) {
			root := fstest.MapFS{}
			for file, content := range test.files {
				root[file] = &fstest.MapFile{Data: []byte(content)}
			}
			if got := memoryLimit(root, machine); got != test.want {
				t.Errorf("the limit is %d, want %d", got, test.want)
			}
		})
	}
	if got := DefaultLimit(); got <= 0 || got > maxDefault {
		t.Errorf("the default limit is %d", got)
	}
}
