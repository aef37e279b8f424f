package memorylimit

import (
	"testing"
	"testing/fstest"
)

func TestLimit(t *testing.T) {
	const machine = 8 << 30
	for name, test := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"no cgroup": {nil, machine},
		"version 2, the minimum of all levels": {map[string]string{
			"proc/self/cgroup":                           "0::/kubepods/pod1/app\n",
			"sys/fs/cgroup/kubepods/memory.max":          "4294967296\n",
			"sys/fs/cgroup/kubepods/pod1/memory.max":     "2147483648\n",
			"sys/fs/cgroup/kubepods/pod1/app/memory.max": "max\n",
		}, 2 << 30},
		"version 2, in its own namespace": {map[string]string{
			"proc/self/cgroup":         "0::/../../host/path\n",
			"sys/fs/cgroup/memory.max": "1073741824\n",
		}, 1 << 30},
		"version 1": {map[string]string{
			"proc/self/cgroup": "9:name=systemd:/\n4:memory:/docker/1\n0::/\n",
			"sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes": "536870912\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":          "9223372036854771712\n",
		}, 512 << 20},
		"version 2, without a limit at any level": {map[string]string{
			"proc/self/cgroup":                      "0::/system.slice/server\n",
			"sys/fs/cgroup/system.slice/memory.max": "max\n",
		}, machine},
		"both versions": {map[string]string{
			"proc/self/cgroup": "4:memory:/a\n0::/b\n",
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "2147483648\n",
			"sys/fs/cgroup/b/memory.max":                   "1073741824\n",
		}, 1 << 30},
		"a file without a number": {map[string]string{
			"proc/self/cgroup":         "0::/\n",
			"sys/fs/cgroup/memory.max": "\n",
		}, machine},
		"more than the machine's memory": {map[string]string{
			"proc/self/cgroup":         "0::/\n",
			"sys/fs/cgroup/memory.max": "9223372036854771712\n",
		}, machine},
	} {
		t.Run(name, func(t *testing.T) {
			root := fstest.MapFS{}
			for file, content := range test.files {
				root[file] = &fstest.MapFile{Data: []byte(content)}
			}
			if got := limit(root, machine); got != test.want {
				t.Errorf("the limit is %d, want %d", got, test.want)
			}
		})
	}
	if got := Process(); got <= 0 || got > machineMemory() {
		t.Errorf("the limit of this process is %d", got)
	}
}

func TestSoftLimit(t *testing.T) {
	const machine = 8 << 30
	for name, test := range map[string]struct {
		environment string
		process     int64
		want        int64
	}{
		"a large limit":            {"", 2000 << 20, 1800 << 20},
		"a small limit":            {"", 512 << 20, 384 << 20},
		"a tiny limit":             {"", 100 << 20, 50 << 20},
		"no limit":                 {"", machine, 0},
		"set by the operator":      {"400MiB", 1000 << 20, 0},
		"disabled by the operator": {"off", 1000 << 20, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := softLimit(test.environment, test.process, machine); got != test.want {
				t.Errorf("the soft limit is %d, want %d", got, test.want)
			}
		})
	}
}
