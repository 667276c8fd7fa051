package arch

import (
	"fmt"
	"go/ast"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// failureCases is the number of failure cases that docs/TESTING.md lists.
const failureCases = 56

var (
	caseNumber = regexp.MustCompile(`F[0-9]+`)
	caseRow    = regexp.MustCompile(`^\| (F[0-9]+) \|`)
	testName   = regexp.MustCompile("`(Test[A-Za-z0-9]+)`")
)

// namedTests returns the failure cases that each test of the module carries in its name.
func namedTests(t *testing.T) map[string][]string {
	t.Helper()
	cases := make(map[string][]string)
	for _, s := range sources(t) {
		if !s.test {
			continue
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
				cases[f.Name.Name] = append(cases[f.Name.Name], caseNumber.FindAllString(f.Name.Name, -1)...)
			}
		}
	}
	return cases
}

// Every failure case has a test that carries its number, and a row in docs/TESTING.md that names one.
func TestEveryFailureCaseHasATest(t *testing.T) {
	tests := namedTests(t)
	tested := make(map[string]bool)
	for _, cases := range tests {
		for _, c := range cases {
			tested[c] = true
		}
	}
	page, err := os.ReadFile("../../docs/TESTING.md")
	require.NoError(t, err)
	var rows []string
	for line := range strings.Lines(string(page)) {
		row := caseRow.FindStringSubmatch(line)
		if row == nil {
			continue
		}
		rows = append(rows, row[1])
		names := testName.FindAllStringSubmatch(line, -1)
		if len(names) == 0 {
			t.Errorf("docs/TESTING.md: %s names no test", row[1])
		}
		for _, name := range names {
			if !slices.Contains(tests[name[1]], row[1]) {
				t.Errorf("docs/TESTING.md: %s: there is no test %s that carries the number", row[1], name[1])
			}
		}
	}
	var all []string
	for n := 1; n <= failureCases; n++ {
		all = append(all, fmt.Sprint("F", n))
		if !tested[all[n-1]] {
			t.Errorf("no test carries F%d in its name", n)
		}
	}
	require.Equal(t, all, rows, "rows of docs/TESTING.md")
	for c := range tested {
		if !slices.Contains(all, c) {
			t.Errorf("%s is no failure case", c)
		}
	}
}
