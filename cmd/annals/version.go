package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func newVersion(p *process) *cobra.Command {
	var json bool
	cmd := &cobra.Command{Use: "version [flags]", Short: "Print what was built", Long: "Prints what was built. With --json one object:\n\n" +
		`  {"version":"v0.1.0","commit":"4f0c...","modified":false,"go":"go1.26.0","platform":"linux/amd64"}`}
	define := func(s *settings) {
		s.flags.BoolVar(&json, "json", false, "print one JSON object")
	}
	return newCommand(p, cmd, nil, define, func(*settings) {}, func(*settings, []string) error {
		var err error
		if b := thisBuild(); json {
			err = printJSONLine(p.stdout, b)
		} else {
			_, err = fmt.Fprintln(p.stdout, b)
		}
		if err != nil {
			return failf("write: %w", err)
		}
		return nil
	})
}

// build says what was built.
type build struct {
	Version  string `json:"version"` // of the module; "(devel)" in a work tree
	Commit   string `json:"commit"`  // empty if it is not known
	Modified bool   `json:"modified"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func thisBuild() build {
	b := build{Version: "(unknown)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	b.Version = info.Main.Version
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

// String is the build on one line.
func (b build) String() string {
	text := "annals " + b.Version
	if b.Commit != "" {
		text += " commit " + b.Commit
	}
	if b.Modified {
		text += " (modified)"
	}
	return text + " " + b.Go
}

// version describes the build.
func version() string { return thisBuild().String() }
