package monitoring

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"
)

// dashboard is the part of a dashboard of Grafana that tests read.
type dashboard struct {
	UID        string  `json:"uid"`
	Title      string  `json:"title"`
	Panels     []panel `json:"panels"`
	Templating struct {
		List []variable `json:"list"`
	} `json:"templating"`
}

// panel is a row, or a chart with queries.
type panel struct {
	ID          int      `json:"id"`
	Type        string   `json:"type"`
	Title       string   `json:"title"`
	Description string   `json:"description"`
	Targets     []target `json:"targets"`
	GridPos     struct {
		X int `json:"x"`
		Y int `json:"y"`
		W int `json:"w"`
		H int `json:"h"`
	} `json:"gridPos"`
	FieldConfig struct {
		Defaults struct {
			Unit string `json:"unit"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
}

// target is a query.
type target struct {
	RefID      string     `json:"refId"`
	Expr       string     `json:"expr"`
	Datasource datasource `json:"datasource"`
}

type datasource struct {
	UID string `json:"uid"`
}

// variable is a choice at the top of a dashboard.
type variable struct {
	Name string `json:"name"`
	Type string `json:"type"`
	// Definition is a query of the form label_values(selector, label).
	Definition string `json:"definition"`
}

// dashboards returns the shipped dashboards by file name.
func dashboards(t *testing.T) map[string]dashboard {
	t.Helper()
	files, err := filepath.Glob(artifact(t, "dashboards/*.json"))
	if err != nil || len(files) != 3 {
		t.Fatalf("the dashboards are %v, error %v; want three", files, err)
	}
	found := map[string]dashboard{}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var d dashboard
		if err := json.Unmarshal(content, &d); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		found[filepath.Base(file)] = d
	}
	return found
}

// reference is a use of a variable in a query, such as $namespace.
var reference = regexp.MustCompile(`\$(\w+)`)

// TestDashboards checks that dashboards have unique IDs, panels that do not overlap, with units and descriptions, and only queries of the chosen
// data source with variables that exist.
func TestDashboards(t *testing.T) {
	uids := sets.New[string]()
	for file, d := range dashboards(t) {
		if uids.Has(d.UID) || d.UID == "" || d.Title == "" {
			t.Errorf("%s: uid %q, title %q", file, d.UID, d.Title)
		}
		uids.Insert(d.UID)
		// Grafana sets the variables that begin with two underscores.
		variables := sets.New("__rate_interval", "__range")
		for _, v := range d.Templating.List {
			variables.Insert(v.Name)
		}
		if !variables.HasAll("datasource", "namespace") {
			t.Errorf("%s has only the variables %v", file, sets.List(variables))
		}
		ids := sets.New[int]()
		cells := map[[2]int]string{}
		for _, p := range d.Panels {
			if ids.Has(p.ID) {
				t.Errorf("%s: several panels have the id %d", file, p.ID)
			}
			ids.Insert(p.ID)
			if g := p.GridPos; g.W <= 0 || g.H <= 0 || g.X < 0 || g.X+g.W > 24 {
				t.Errorf("%s: panel %q is at %+v", file, p.Title, g)
			}
			for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
				for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
					if other, found := cells[[2]int{x, y}]; found {
						t.Fatalf("%s: panels %q and %q overlap", file, p.Title, other)
					}
					cells[[2]int{x, y}] = p.Title
				}
			}
			if p.Type == "row" {
				continue
			}
			if p.FieldConfig.Defaults.Unit == "" || p.Description == "" || len(p.Targets) == 0 {
				t.Errorf("%s: panel %q needs a unit, a description and a query", file, p.Title)
			}
			for _, q := range p.Targets {
				if q.Datasource.UID != "${datasource}" {
					t.Errorf("%s: panel %q reads the data source %q", file, p.Title, q.Datasource.UID)
				}
				for _, match := range reference.FindAllStringSubmatch(q.Expr, -1) {
					if !variables.Has(match[1]) {
						t.Errorf("%s: panel %q has the unknown variable %s", file, p.Title, match[0])
					}
				}
				if strings.Contains(q.Expr, "rate(") && !strings.Contains(q.Expr, "[") {
					t.Errorf("%s: panel %q has a rate without a range", file, p.Title)
				}
			}
		}
	}
}
