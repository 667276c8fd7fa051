package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// pkg is a package with fuzz targets.
type pkg struct {
	path, dir string
	targets   []string
}

var declaration = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(\w+ \*testing\.F\)`)

// list returns the packages that have targets.
func list(pattern string) (packages []pkg, err error) {
	const format = "{{.ImportPath}}\t{{.Dir}}{{range .TestGoFiles}}\t{{.}}{{end}}{{range .XTestGoFiles}}\t{{.}}{{end}}"
	out, err := output("go", "list", "-f", format, pattern)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(out) {
		fields := strings.Split(strings.TrimSpace(line), "\t")
		p := pkg{path: fields[0], dir: fields[1]}
		for _, file := range fields[2:] {
			source, err := os.ReadFile(filepath.Join(p.dir, file))
			if err != nil {
				return nil, fmt.Errorf("look for targets: %w", err)
			}
			for _, m := range declaration.FindAllSubmatch(source, -1) {
				p.targets = append(p.targets, string(m[1]))
			}
		}
		if len(p.targets) > 0 {
			packages = append(packages, p)
		}
	}
	return packages, nil
}
