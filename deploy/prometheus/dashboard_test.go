package prometheus

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A dashboard is what is looked at of Grafana's format.
type dashboard struct {
	UID, Title    string
	SchemaVersion int
	Panels        []panel
	Templating    struct {
		List []struct {
			Name, Type string
			Query      json.RawMessage
		}
	}
}

type panel struct {
	ID                       int
	Type, Title, Description string
	GridPos                  struct{ H, W, X, Y int }
	Datasource               struct{ UID string }
	Targets                  []struct {
		RefID, Expr, LegendFormat string
		Datasource                struct{ UID string }
	}
}

func readDashboard(t *testing.T) *dashboard {
	t.Helper()
	text, err := os.ReadFile("../grafana/annals.json")
	require.NoError(t, err)
	d := new(dashboard)
	require.NoError(t, json.Unmarshal(text, d))
	return d
}

// filled replaces Grafana's variables as it does when all servers are chosen.
var filled = strings.NewReplacer("$__rate_interval", rateInterval, "$job", "annals", "$instance", ".*")

// Every query of the dashboard names what the real servers tell, and says something about servers that are in use.
func TestDashboardOfRealServers(t *testing.T) {
	d := live(t)
	queries := 0
	for _, p := range readDashboard(t).Panels {
		for _, target := range p.Targets {
			queries++
			expr := filled.Replace(target.Expr)
			require.NotContains(t, expr, "$", "%s: a variable that is not known", p.Title)
			require.Empty(t, d.unknown(expr, nil), "%s: %s", p.Title, expr)
			require.NotZero(t, numbers(d.query(newest, expr)), "%s shows nothing: %s", p.Title, expr)
			require.Contains(t, expr, `job=~"annals"`, "%s does not keep to the chosen job", p.Title)
		}
	}
	require.Greater(t, queries, 40)
}

// The panels are where one sees them, each once, and say what they show.
func TestDashboardLayout(t *testing.T) {
	d := readDashboard(t)
	require.Equal(t, "annals", d.UID)
	taken := make(map[[2]int]string)
	ids := make(map[int]bool)
	for _, p := range d.Panels {
		require.False(t, ids[p.ID], "two panels have the id %d", p.ID)
		ids[p.ID] = true
		require.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24, p.Title)
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				require.Empty(t, taken[at], "%s lies on it", p.Title)
				taken[at] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		require.NotEmpty(t, p.Description, p.Title)
		require.NotEmpty(t, p.Targets, p.Title)
		require.Equal(t, "${datasource}", p.Datasource.UID, p.Title)
		for _, target := range p.Targets {
			require.Equal(t, "${datasource}", target.Datasource.UID, p.Title)
		}
	}
	var variables []string
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name)
	}
	require.Equal(t, []string{"datasource", "job", "instance"}, variables)
}
