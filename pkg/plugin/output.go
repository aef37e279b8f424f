package plugin

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned/scheme"
	"github.com/knative-apiserver/knative-apiserver/pkg/inspect"
)

// The formats that every command with output has. Without a format, the output is text.
const (
	formatJSON = "json"
	formatYAML = "yaml"
	formatWide = "wide"
)

// output is the flag --output of a command.
type output struct {
	format string
	valid  []string
}

// addFlag adds the flag, with more formats than those of every command.
func (o *output) addFlag(command *cobra.Command, more ...string) {
	o.valid = append([]string{formatJSON, formatYAML, formatWide}, more...)
	command.Flags().StringVarP(&o.format, "output", "o", "", "Output format. One of: "+strings.Join(o.valid, ", ")+".")
	err := command.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(o.valid, cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic(err)
	}
}

func (o *output) validate() error {
	if o.format != "" && !slices.Contains(o.valid, o.format) {
		return fmt.Errorf("unknown output format '%.100s'; valid formats are %s", o.format, strings.Join(o.valid, ", "))
	}
	return nil
}

func (o *output) wide() bool { return o.format == formatWide }

// structured prints a value as JSON or YAML if the flag requests it, and reports whether it did. An object gets its kind.
func (o *output) structured(to io.Writer, value any) (printed bool, err error) {
	if o.format != formatJSON && o.format != formatYAML {
		return false, nil
	}
	if object, ok := value.(runtime.Object); ok {
		if err := setKind(object); err != nil {
			return false, err
		}
	}
	var data []byte
	if o.format == formatJSON {
		if data, err = json.MarshalIndent(value, "", "    "); err == nil {
			data = append(data, '\n')
		}
	} else {
		data, err = yaml.Marshal(value)
	}
	if err != nil {
		return false, fmt.Errorf("encode output: %w", err)
	}
	_, err = to.Write(data)
	return true, err
}

// setKind sets the apiVersion and kind of an object, which typed clients do not.
func setKind(object runtime.Object) error {
	if !object.GetObjectKind().GroupVersionKind().Empty() {
		return nil
	}
	found, _, err := scheme.Scheme.ObjectKinds(object)
	if err != nil {
		return err
	}
	object.GetObjectKind().SetGroupVersionKind(found[0])
	return nil
}

// objectsOf returns the objects of a list.
func objectsOf(list runtime.Object) (objects []metav1.Object, err error) {
	err = meta.EachListItem(list, func(item runtime.Object) error {
		object, err := meta.Accessor(item)
		objects = append(objects, object)
		return err
	})
	return objects, err
}

// namesOf returns the names of the objects of a list.
func namesOf(list runtime.Object) (names []string, err error) {
	objects, err := objectsOf(list)
	for _, object := range objects {
		names = append(names, object.GetName())
	}
	return names, err
}

// table prints rows of cells in columns as kubectl does.
func table(to io.Writer, rows [][]string) error {
	w := tabwriter.NewWriter(to, 0, 8, 3, ' ', 0)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = inspect.Visible(cell)
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	return w.Flush()
}
