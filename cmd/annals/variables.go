package main

import (
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// variablePrefix begins the name of every environment variable that annals reads.
const variablePrefix = "ANNALS_"

// variablesOfTests are those of the test suite, or what they begin with: a shell in which tests were run may have them.
var variablesOfTests = []string{"ANNALS_TEST_", "ANNALS_SIM_", "ANNALS_PROCESS_", "ANNALS_FUZZ_", "ANNALS_HISTORY", "ANNALS_MUTANTS", "ANNALS_VERSITYGW"}

// Kubernetes gives each container variables that tell where the services of its namespace are, named after the
// service. For the services annals and annals-reader they begin as ours do: ANNALS_SERVICE_HOST, ANNALS_PORT,
// ANNALS_READER_PORT_8080_TCP_ADDR. The last but one form is told from a name of ours by its value, a URL.
var (
	serviceVariable = regexp.MustCompile(`^ANNALS_([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`)
	servicePort     = regexp.MustCompile(`^ANNALS_([A-Z0-9_]+_)?PORT=(tcp|udp|sctp)://`)
)

// variableNames are the variables that some command reads. One environment serves them all.
type variableNames map[string]bool

func (n variableNames) add(s *settings) {
	for name := range s.variables {
		n[name] = true
	}
}

// variableOf is the name of a flag's environment variable.
func variableOf(flag string) string {
	return variablePrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// withVariable lets the flag's variable set it too, and says so in its usage.
func (s *settings) withVariable(name string) {
	flag := s.flags.Lookup(name)
	s.variables[variableOf(name)] = flag
	about, initial, ownDefault := strings.Cut(flag.Usage, " (default")
	flag.Usage = about + " [" + variableOf(name) + "]"
	if ownDefault {
		flag.Usage += " (default" + initial
	}
}

// withVariables lets all flags' variables set them. The command's text says it once for all.
func (s *settings) withVariables() {
	s.flags.VisitAll(func(f *pflag.Flag) {
		if f.Name != printConfigFlag {
			s.variables[variableOf(f.Name)] = f
		}
	})
}

// readVariables sets every flag that the command line did not from its variable. An empty variable counts as unset.
func (s *settings) readVariables(environ []string) {
	for _, entry := range slices.Sorted(slices.Values(environ)) {
		name, value, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, variablePrefix) || value == "" {
			continue
		}
		flag := s.variables[name]
		switch {
		case flag == nil:
			if !s.known[name] && !isOthersVariable(entry) {
				s.fault("unknown variable %s%s", name, didYouMean("", name, s.variableNames()))
			}
		case !flag.Changed:
			s.set(flag, name, value)
		}
	}
}

// isOthersVariable reports whether a variable that begins as ours do is meant for somebody else.
func isOthersVariable(entry string) bool {
	name, _, _ := strings.Cut(entry, "=")
	for _, other := range variablesOfTests {
		if name == other || strings.HasSuffix(other, "_") && strings.HasPrefix(name, other) {
			return true
		}
	}
	return serviceVariable.MatchString(name) || servicePort.MatchString(entry)
}

func (s *settings) variableNames() (names []string) {
	for name := range s.variables {
		names = append(names, name)
	}
	return names
}
