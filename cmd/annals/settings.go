package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// usageError lists everything that is wrong with a command line at once.
type usageError struct{ faults []string }

func (e *usageError) Error() string {
	if len(e.faults) == 1 {
		return e.faults[0]
	}
	return fmt.Sprintf("%d faults:\n  %s", len(e.faults), strings.Join(e.faults, "\n  "))
}

// settings are the flags of one command, and what sets them: the command line, the environment's variables, and
// where a command has --config a file. The first of these that names a flag wins. Reading goes on after a fault, so
// that all faults of all sources are reported at once.
type settings struct {
	flags     *pflag.FlagSet
	variables map[string]*pflag.Flag // by the name of the variable
	known     variableNames          // those of all commands
	config    string                 // --config, for commands that have it
	printing  bool                   // --print-config
	sources   map[string]string      // where a flag's value is from, by its name; none: it is the default
	faults    []string
	checks    []func()               // run once all values are known; they may add faults
	unused    func(flag string) bool // what --print-config leaves out; nil: nothing
}

func newSettings(flags *pflag.FlagSet) *settings {
	flags.SortFlags = false
	return &settings{flags: flags, variables: make(map[string]*pflag.Flag), known: make(variableNames), sources: make(map[string]string)}
}

// newCommand builds a subcommand. define adds its flags; run gets the positional
// arguments, whose names are in arguments ("[KEY...]" at the end: any number), once there is no fault. check may
// add faults that need all the values.
func newCommand(p *process, cmd *cobra.Command, arguments []string, define func(*settings),
	check func(*settings), run func(s *settings, args []string) error) *cobra.Command {
	s := newSettings(cmd.Flags())
	cmd.Args = cobra.ArbitraryArgs
	cmd.DisableFlagParsing = true // the library stops at the first fault
	cmd.DisableFlagsInUseLine = true
	cmd.SetUsageTemplate(usageTemplate)
	define(s)
	cmd.ValidArgsFunction = s.complete
	s.known = p.variables
	s.known.add(s)
	cmd.RunE = func(cmd *cobra.Command, raw []string) error {
		args, help := s.read(raw, p.environ, arguments)
		if help {
			return cmd.Help()
		}
		check(s)
		if len(s.faults) > 0 {
			return &usageError{s.faults}
		}
		if s.printing {
			return s.printConfig(p.stdout)
		}
		return run(s, args)
	}
	return cmd
}

const usageTemplate = `Usage:
  {{.UseLine}}
{{if .HasAvailableLocalFlags}}
Flags:
{{.LocalFlags.FlagUsagesWrapped 110 | trimTrailingWhitespaces}}
{{end}}`

// fault records something that is wrong with the command line.
func (s *settings) fault(format string, args ...any) {
	s.faults = append(s.faults, fmt.Sprintf(format, args...))
}

// read sets the flags from all sources, and returns the positional arguments, and whether only help is asked for.
func (s *settings) read(raw, environ, arguments []string) (args []string, help bool) {
	if args, help = s.parse(raw); help {
		return args, help
	}
	s.readVariables(environ)
	s.readFile()
	s.checkArguments(arguments, args)
	for _, check := range s.checks {
		check()
	}
	return args, false
}

// parse sets the flags from the command line and returns the positional
// arguments, and whether help is asked for.
func (s *settings) parse(raw []string) (args []string, help bool) {
	for len(raw) > 0 {
		arg := raw[0]
		raw = raw[1:]
		switch {
		case arg == "--":
			return append(args, raw...), help
		case arg == "-h" || arg == "--help":
			help = true
		case strings.HasPrefix(arg, "--"):
			raw = s.parseFlag(arg[len("--"):], raw)
		case len(arg) > 1 && arg[0] == '-':
			s.fault("unknown flag %s", arg)
		default:
			args = append(args, arg)
		}
	}
	return args, help
}

// parseFlag sets one flag from its text without the dashes, or records the
// fault, and returns the rest of the command line behind its value.
func (s *settings) parseFlag(text string, rest []string) []string {
	name, value, given := strings.Cut(text, "=")
	flag := s.flags.Lookup(name)
	if flag != nil && !given && flag.NoOptDefVal != "" {
		value, given = flag.NoOptDefVal, true
	}
	if !given && len(rest) > 0 && !strings.HasPrefix(rest[0], "--") {
		value, given, rest = rest[0], true, rest[1:]
	}
	switch {
	case name == "token" && s.variables[tokenVariable] != nil:
		s.fault("--token: everybody on a machine can read command lines; use --token-file, or the variable %s", tokenVariable)
	case flag == nil:
		s.fault("unknown flag --%s%s", name, didYouMean("--", name, s.names()))
	case !given:
		s.fault("--%s needs a value", name)
	default:
		s.set(flag, "--"+name, value)
	}
	return rest
}

// set sets a flag and remembers by which source.
func (s *settings) set(flag *pflag.Flag, source, value string) {
	if err := flag.Value.Set(value); err != nil {
		why := strings.ReplaceAll(err.Error(), "\n", "; ")
		if flag.Value.Type() == "bool" { // the library's
			why = fmt.Sprintf("%q is not true or false", value)
		}
		s.fault("%s: %s", source, why)
	}
	flag.Changed = true
	s.sources[flag.Name] = source
}

func (s *settings) checkArguments(names, args []string) {
	if n := len(names); n > 0 && strings.HasSuffix(names[n-1], "...]") { // any number of them
		names = names[:n-1]
	} else {
		for _, extra := range args[min(n, len(args)):] {
			s.fault("unexpected argument %q", extra)
		}
	}
	// An unknown flag may have taken the argument for its value.
	if len(args) < len(names) && len(s.faults) == 0 {
		s.fault("%s is missing", strings.Join(names[len(args):], " "))
	}
}

// changed reports whether the flag was set, by whatever source.
func (s *settings) changed(name string) bool { return s.flags.Lookup(name).Changed }

// names returns the flags' names in the order in which they were added.
func (s *settings) names() (names []string) {
	s.flags.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return names
}

// value is a flag whose text is read by a function.
type value[T any] struct {
	target *T
	parse  func(string) (T, error)
	text   string
	kind   string
}

func (v *value[T]) Set(text string) error {
	parsed, err := v.parse(text)
	if err != nil {
		return err
	}
	*v.target, v.text = parsed, text
	return nil
}

// accepts reports whether the flag can be set to a text. It stays as it is.
func (v *value[T]) accepts(text string) bool {
	_, err := v.parse(text)
	return err == nil
}

func (v *value[T]) String() string { return v.text }
func (v *value[T]) Type() string   { return v.kind }

// addFlag adds a flag of the given kind (a word for the help) to s. An empty
// initial leaves the target as it is: its usage says what it means when it is
// not set.
func addFlag[T any](s *settings, name, kind, initial string, target *T, parse func(string) (T, error), usage string) {
	v := &value[T]{target: target, parse: parse, kind: kind}
	if initial != "" {
		if err := v.Set(initial); err != nil {
			panic(fmt.Sprintf("default of --%s: %v", name, err))
		}
	}
	s.flags.Var(v, name, usage)
}
