package main

import (
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"
)

func newVersion(p *process) *cobra.Command {
	cmd := &cobra.Command{Use: "version", Short: "Print what was built"}
	return newCommand(p, cmd, nil, func(*settings) {}, func(*settings) {}, func(*settings, []string) error {
		fmt.Fprintln(p.stdout, version())
		return nil
	})
}

// version describes the build: the module's version or the commit, and the
// compiler.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "annals (unknown build)"
	}
	text := "annals " + info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			text += " commit " + s.Value
		}
		if s.Key == "vcs.modified" && s.Value == "true" {
			text += " (modified)"
		}
	}
	return text + " " + info.GoVersion
}
