package registry

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	metatable "k8s.io/apimachinery/pkg/api/meta/table"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// Column is one table column of a kind.
type Column[O Object] struct {
	Name, Description string
	// Type is an OpenAPI type: string, integer, date. Format is set only for the name of the object.
	Type, Format string
	// Wide columns are shown only by kubectl get -o wide.
	Wide bool
	// Value returns the value of the cell; nil renders as empty.
	Value func(O) any
}

// ReadyColumns show the Ready condition and its reason.
func ReadyColumns[O Object](common func(O) *duckv1.Status) []Column[O] {
	ready := func(o O) duckv1.Condition {
		if c := common(o).Conditions.Get(duckv1.ConditionReady); c != nil {
			return *c
		}
		return duckv1.Condition{}
	}
	return []Column[O]{
		{Name: "Ready", Type: "string", Description: "Whether the object works: True, False or Unknown.", Value: func(o O) any {
			return string(ready(o).Status)
		}},
		{Name: "Reason", Type: "string", Description: "The cause of the Ready condition.", Value: func(o O) any {
			return ready(o).Reason
		}},
	}
}

// AgeColumn shows the age of an object.
func AgeColumn[O Object]() Column[O] {
	return Column[O]{Name: "Age", Type: "string", Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"], Value: func(o O) any {
		return metatable.ConvertToHumanReadableDateType(o.GetCreationTimestamp())
	}}
}

// NameColumn shows the name of an object.
func NameColumn[O Object]() Column[O] {
	return Column[O]{Name: "Name", Type: "string", Format: "name", Description: metav1.ObjectMeta{}.SwaggerDoc()["name"], Value: func(o O) any {
		return o.GetName()
	}}
}

type tableConvertor[O Object] struct {
	definitions []metav1.TableColumnDefinition
	columns     []Column[O]
}

// NewTableConvertor returns a convertor that renders objects and lists of a kind with these columns.
func NewTableConvertor[O Object](columns ...Column[O]) rest.TableConvertor {
	t := tableConvertor[O]{columns: columns}
	for _, c := range columns {
		definition := metav1.TableColumnDefinition{Name: c.Name, Type: c.Type, Format: c.Format, Description: c.Description}
		if c.Wide {
			definition.Priority = 1
		}
		t.definitions = append(t.definitions, definition)
	}
	return t
}

// ConvertToTable renders an object or a list of them, one row each.
func (t tableConvertor[O]) ConvertToTable(_ context.Context, object runtime.Object, tableOptions runtime.Object) (*metav1.Table, error) {
	var table metav1.Table
	if options, ok := tableOptions.(*metav1.TableOptions); !ok || !options.NoHeaders {
		table.ColumnDefinitions = t.definitions
	}
	row := func(obj runtime.Object) error {
		o := obj.(O)
		cells := make([]any, 0, len(t.definitions))
		for _, c := range t.columns {
			cells = append(cells, c.Value(o))
		}
		table.Rows = append(table.Rows, metav1.TableRow{Cells: cells, Object: runtime.RawExtension{Object: obj}})
		return nil
	}
	if meta.IsListType(object) {
		if err := meta.EachListItem(object, row); err != nil {
			return nil, err
		}
	} else if err := row(object); err != nil {
		return nil, err
	}
	if list, err := meta.ListAccessor(object); err == nil {
		table.ResourceVersion = list.GetResourceVersion()
		table.Continue = list.GetContinue()
		table.RemainingItemCount = list.GetRemainingItemCount()
	} else if single, err := meta.CommonAccessor(object); err == nil {
		table.ResourceVersion = single.GetResourceVersion()
	}
	return &table, nil
}
