package process

import (
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

const (
	loopback = "127.0.0.1"
	// defaultPath is searched where the server has no PATH itself.
	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// baseEnvironment returns those of the server's variables that processes get: where programs and files are,
// language and time zone. All others may hold secrets.
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

// environment is an ordered set of variables.
type environment struct {
	names  []string
	values map[string]string
}

func (e *environment) set(name, value string) {
	if _, ok := e.values[name]; !ok {
		e.names = append(e.names, name)
	}
	e.values[name] = value
}

// list returns the variables as a process gets them, after those of base that it does not set itself.
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

// expand replaces references to known variables, as core/v1 has it: $(UNKNOWN) stays, $$ becomes $.
func (e *environment) expand(s string) string {
	return reference.ReplaceAllStringFunc(s, func(match string) string {
		if match == "$$" {
			return "$"
		}
		if value, ok := e.values[match[2:len(match)-1]]; ok {
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

// variables returns the environment of one container in an instance: HOSTNAME, the variables of the runtime
// contract, then its own, each of which may refer to those before. The error says which field asks for what
// is not there.
func (p *plan) variables(c *container, instance, port string) (*environment, error) {
	e := &environment{values: map[string]string{}}
	e.set("HOSTNAME", instance)
	e.set("K_SERVICE", p.service)
	e.set("K_CONFIGURATION", p.configuration)
	e.set("K_REVISION", p.revision.Name)
	if c.serving {
		e.set("PORT", port)
	}
	for i, from := range c.EnvFrom {
		optional := from.ConfigMapRef != nil && ptr.Deref(from.ConfigMapRef.Optional, false) ||
			from.SecretRef != nil && ptr.Deref(from.SecretRef.Optional, false)
		if !optional {
			return nil, unavailable(fmt.Sprintf("%s.envFrom[%d]", c.path, i))
		}
	}
	for i, variable := range c.Env {
		path := fmt.Sprintf("%s.env[%d].valueFrom", c.path, i)
		switch from := variable.ValueFrom; {
		case from == nil:
			e.set(variable.Name, e.expand(variable.Value))
		case from.FieldRef != nil:
			value, ok := p.field(from.FieldRef.FieldPath, instance)
			if !ok {
				return nil, fmt.Errorf("Standalone knows no value for the field %q of %s.fieldRef: use a value.", from.FieldRef.FieldPath, path)
			}
			e.set(variable.Name, value)
		case isOptional(from):
		default:
			return nil, unavailable(path)
		}
	}
	return e, nil
}

func isOptional(from *corev1.EnvVarSource) bool {
	return from.ConfigMapKeyRef != nil && ptr.Deref(from.ConfigMapKeyRef.Optional, false) ||
		from.SecretKeyRef != nil && ptr.Deref(from.SecretKeyRef.Optional, false)
}

func unavailable(path string) error {
	return fmt.Errorf("Standalone has no ConfigMaps, Secrets and container resources that %s could refer to: use spec.template.spec.containers[].env with values.", path)
}

// field returns what a field of an instance's Pod would hold.
func (p *plan) field(path, instance string) (string, bool) {
	switch path {
	case "metadata.name":
		return instance, true
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
