package process

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/knative-apiserver/knative-apiserver/pkg/workload/process/objects"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/process/volumes"
)

const (
	loopback = "127.0.0.1"
	// defaultPath is used if the server has no PATH.
	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// baseEnvironment returns the variables that processes inherit from the server: paths, language and time zone. All others
// may hold secrets.
func baseEnvironment(lookup func(string) (string, bool)) []string {
	var base []string
	for _, name := range []string{"PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR"} {
		value, ok := lookup(name)
		if !ok && name == "PATH" {
			value, ok = defaultPath, true
		}
		if ok {
			base = append(base, name+"="+value)
		}
	}
	return base
}

// maxEnvironment bounds the variables of a process and the expansion of references, in bytes. Linux accepts 2 MiB including
// the arguments; nested references could expand to any size.
const maxEnvironment = 4 << 20

// environment is an ordered set of variables.
type environment struct {
	names  []string
	values map[string]string
	// size is the number of bytes set so far; beyond maxEnvironment no variable is set.
	size int
}

func (e *environment) set(name, value string) {
	if e.size += len(name) + len(value); e.size > maxEnvironment {
		return
	}
	if _, ok := e.values[name]; !ok {
		e.names = append(e.names, name)
	}
	e.values[name] = value
}

// list returns all variables for a process: the variables of base that e does not set, then its own.
func (e *environment) list(base []string) []string {
	var all []string
	for _, variable := range base {
		name, _, _ := strings.Cut(variable, "=")
		if _, ok := e.values[name]; !ok {
			all = append(all, variable)
		}
	}
	for _, name := range e.names {
		all = append(all, name+"="+e.values[name])
	}
	return all
}

// reference is a $(VARIABLE), or the $$ that escapes one.
var reference = regexp.MustCompile(`\$\$|\$\([^)]*\)`)

// expand replaces references to known variables as core/v1 specifies: $(UNKNOWN) stays, $$ becomes $.
func (e *environment) expand(s string) string {
	return reference.ReplaceAllStringFunc(s, func(match string) string {
		if match == "$$" {
			return "$"
		}
		if value, ok := e.values[match[2:len(match)-1]]; ok {
			if e.size += len(value); e.size > maxEnvironment {
				return ""
			}
			return value
		}
		return match
	})
}

func (e *environment) expandAll(list []string) []string {
	expanded := make([]string, len(list))
	for i, s := range list {
		expanded[i] = e.expand(s)
	}
	return expanded
}

// variables returns the environment of one container: envFrom, HOSTNAME, the variables of the runtime contract, then the
// container's own, each of which may refer to earlier ones. If in is nil, as before a backend starts, references to objects
// are skipped. Errors name the field.
func (p *plan) variables(c *container, backend, port string, in *objects.Snapshot) (*environment, error) {
	e := &environment{values: map[string]string{}}
	for i := range c.EnvFrom {
		if err := e.setFrom(&c.EnvFrom[i], in); err != nil {
			return nil, fmt.Errorf("%w (%s.envFrom[%d])", err, c.path, i)
		}
	}
	e.set("HOSTNAME", backend)
	e.set("K_SERVICE", p.service)
	e.set("K_CONFIGURATION", p.configuration)
	e.set("K_REVISION", p.revision.Name)
	if c.serving {
		e.set("PORT", port)
	}
	for i, variable := range c.Env {
		if variable.ValueFrom == nil {
			e.set(variable.Name, e.expand(variable.Value))
			continue
		}
		path := fmt.Sprintf("%s.env[%d].valueFrom", c.path, i)
		value, ok, err := p.valueFrom(variable.ValueFrom, backend, path, in)
		if err != nil {
			return nil, err
		}
		if ok {
			e.set(variable.Name, value)
		}
	}
	return e, e.check()
}

// setFrom sets all keys of an object as variables.
func (e *environment) setFrom(from *corev1.EnvFromSource, in *objects.Snapshot) error {
	if in == nil {
		return nil
	}
	var d objects.Data
	var err error
	switch {
	case from.ConfigMapRef != nil:
		d, err = in.Get(objects.ConfigMap, from.ConfigMapRef.Name, from.ConfigMapRef.Optional)
	case from.SecretRef != nil:
		d, err = in.Get(objects.Secret, from.SecretRef.Name, from.SecretRef.Optional)
	}
	for _, key := range slices.Sorted(maps.Keys(d.Text)) {
		e.set(from.Prefix+key, d.Text[key])
	}
	return err
}

// valueFrom returns the value that a variable refers to, and false if the variable must not be set.
func (p *plan) valueFrom(from *corev1.EnvVarSource, backend, path string, in *objects.Snapshot) (value string, ok bool, err error) {
	switch {
	case from.FieldRef != nil:
		if value, ok = p.field(from.FieldRef.FieldPath, backend); !ok {
			err = fmt.Errorf("Standalone has no value for the field %q of %s.fieldRef: use a value.", from.FieldRef.FieldPath, path)
		}
		return value, ok, err
	case from.ResourceFieldRef != nil:
		return "", false, fmt.Errorf("Standalone has no container resources that %s.resourceFieldRef could refer to: use a value.", path)
	case in == nil:
		return "", false, nil
	case from.ConfigMapKeyRef != nil:
		value, ok, err = in.Value(objects.ConfigMap, from.ConfigMapKeyRef.Name, from.ConfigMapKeyRef.Key, from.ConfigMapKeyRef.Optional)
	case from.SecretKeyRef != nil:
		value, ok, err = in.Value(objects.Secret, from.SecretKeyRef.Name, from.SecretKeyRef.Key, from.SecretKeyRef.Optional)
	}
	if err != nil {
		err = fmt.Errorf("%w (%s)", err, path)
	}
	return value, ok, err
}

// check returns an error if a variable cannot be passed to a process. It does not quote the value, which may be secret.
func (e *environment) check() error {
	if e.size > maxEnvironment {
		return fmt.Errorf("the environment is larger than %d MiB", maxEnvironment>>20)
	}
	for _, name := range e.names {
		if strings.ContainsRune(e.values[name], 0) {
			return fmt.Errorf("the value of the variable %q contains a NUL byte: use a volume", name)
		}
	}
	return nil
}

// field returns the value of a field of the Pod that a backend would have.
func (p *plan) field(path, backend string) (string, bool) {
	switch path {
	case "metadata.name":
		return backend, true
	case "metadata.namespace":
		return p.revision.Namespace, true
	case "metadata.uid":
		return string(p.revision.UID), true
	case "spec.serviceAccountName":
		return p.serviceAccount, true
	case "spec.nodeName":
		return "localhost", true
	case "status.podIP", "status.podIPs", "status.hostIP", "status.hostIPs":
		return loopback, true
	}
	for prefix, values := range map[string]map[string]string{
		"metadata.labels['": p.revision.Labels, "metadata.annotations['": p.revision.Annotations,
	} {
		if key, ok := strings.CutPrefix(path, prefix); ok {
			return values[strings.TrimSuffix(key, "']")], true
		}
	}
	return "", false
}

// fields returns the files for fields of a backend: one line per label or annotation, or the field's value.
func (p *plan) fields(backend string) volumes.Field {
	return func(path string) (string, bool) { return p.fieldFile(path, backend) }
}

func (p *plan) fieldFile(field, backend string) (string, bool) {
	var values map[string]string
	switch field {
	case "metadata.labels":
		values = p.revision.Labels
	case "metadata.annotations":
		values = p.revision.Annotations
	default:
		return p.field(field, backend)
	}
	var lines []string
	for _, key := range slices.Sorted(maps.Keys(values)) {
		lines = append(lines, fmt.Sprintf("%s=%q", key, values[key]))
	}
	return strings.Join(lines, "\n"), true
}
