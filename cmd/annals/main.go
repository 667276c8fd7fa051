// Command annals is the whole of annals in one binary: the server, and the
// commands that load and print records through its HTTP API.
//
//	annals serve            run the server
//	annals append           load newline-delimited JSON
//	annals scan KEY         print the records of one key
//	annals tail KEY...      print the records of keys and prefixes as they come
//	annals keys             print the keys
//	annals segments         print the segments
//	annals count KEY        print how many records a key has
//	annals cursors          show and change where consumers go on
//	annals inspect          show what a log consists of
//	annals check            verify a whole log
//	annals compact          compact a log from a process of its own
//	annals bench            measure a log
//	annals token            make tokens and check their file
//	annals version          print what was built
//	annals completion       print a script for completion in a shell
//
// "annals COMMAND --help" lists the flags with their defaults and costs.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// Exit statuses. Scripts and supervisors rely on them: do not renumber. The first two of check mean more.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
	exitUnknown = 3
	exitFenced  = 4
)

// exitStatuses says what they mean, for the help and the documentation.
var exitStatuses = []struct {
	status  int
	meaning string
}{
	{exitOK, "done, or stopped by a signal as a command that runs until then is meant to be"},
	{exitFailure, "a failure that the last lines on standard error name. check: the log is damaged. inspect: it met damage"},
	{exitUsage, "bad flags, variables or arguments, or a bad file of configuration, tokens or certificates that serve or compact is started with: nothing was done. check: it could not look"},
	{exitUnknown, "append: it is unknown whether the last batch was appended"},
	{exitFenced, "serve: another writer has taken the log; do not restart"},
}

// process is what a command takes from the outside, so that tests can run one.
type process struct {
	args    []string // without the program's name
	environ []string // as os.Environ
	stdin   io.Reader
	stdout  io.Writer
	stderr  io.Writer

	variables variableNames // that any command reads; newRoot fills it
}

// exitError ends the process with a status and one line on stderr. With a nil
// err the command has said everything already.
type exitError struct {
	status int
	err    error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.status)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// failf is an error with status 1.
func failf(format string, args ...any) error {
	return &exitError{exitFailure, fmt.Errorf(format, args...)}
}

func main() {
	os.Exit(run(&process{args: os.Args[1:], environ: os.Environ(), stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}))
}

// run executes one command line and returns the exit status.
func run(p *process) int {
	root := newRoot(p)
	cmd, err := root.ExecuteC()
	if err == nil {
		return exitOK
	}
	var usage *usageError
	if errors.As(err, &usage) {
		fmt.Fprintf(p.stderr, "%s: %v\nRun \"%s --help\" for the flags.\n", cmd.CommandPath(), usage, cmd.CommandPath())
		return exitUsage
	}
	var exit *exitError
	if errors.As(err, &exit) {
		if exit.err != nil {
			fmt.Fprintf(p.stderr, "%s: %v\n", cmd.CommandPath(), exit.err)
			if hint := hintOf(cmd, exit.err); hint != "" {
				fmt.Fprintln(p.stderr, hint)
			}
		}
		return exit.status
	}
	// Only the command-line library's own errors are left: an unknown command.
	meant := ""
	if len(p.args) > 0 {
		meant = didYouMean("", p.args[0], commandNames(root))
	}
	fmt.Fprintf(p.stderr, "annals: %v%s\nRun \"annals --help\" for the commands.\n", err, meant)
	return exitUsage
}

// commandNames are the commands below one.
func commandNames(cmd *cobra.Command) (names []string) {
	for _, c := range cmd.Commands() {
		if !c.Hidden {
			names = append(names, c.Name())
		}
	}
	return names
}

// rootLong is the text of "annals --help".
func rootLong() string {
	var b strings.Builder
	b.WriteString("annals is a log database on object storage in which every key is its own ordered stream.\n\nExit statuses:\n")
	for _, e := range exitStatuses {
		fmt.Fprintf(&b, "  %d  %s\n", e.status, e.meaning)
	}
	return strings.TrimSpace(b.String())
}

func newRoot(p *process) *cobra.Command {
	p.variables = make(variableNames)
	root := &cobra.Command{
		Use:                "annals",
		Short:              "A log database on object storage in which every key is its own ordered stream",
		Long:               rootLong(),
		SilenceErrors:      true,
		SilenceUsage:       true,
		DisableSuggestions: true, // run makes them
		CompletionOptions:  cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.SetArgs(p.args)
	root.SetIn(p.stdin)
	root.SetOut(p.stdout)
	root.SetErr(p.stderr)
	root.AddCommand(newServe(p), newAppend(p), newScan(p), newTail(p), newKeys(p), newSegments(p), newCount(p), newCursors(p), newInspect(p), newCheck(p), newCompact(p), newBench(p), newToken(p), newVersion(p), newCompletion(p))
	return root
}
