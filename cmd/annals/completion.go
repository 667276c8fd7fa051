package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const completionLong = `Prints a script that lets a shell complete annals's commands, flags, and the values of flags that are one of a few words.

  bash        source <(annals completion bash)       # in ~/.bashrc; needs the package bash-completion
  zsh         source <(annals completion zsh)        # in ~/.zshrc, behind compinit
  fish        annals completion fish | source        # in ~/.config/fish/config.fish
  powershell  annals completion powershell | Out-String | Invoke-Expression`

// completionShells are the shells that there is a script for.
var completionShells = []string{"bash", "zsh", "fish", "powershell"}

func newCompletion(p *process) *cobra.Command {
	cmd := &cobra.Command{Use: "completion SHELL", Short: "Print a script for completion in a shell", Long: completionLong}
	none := func(*settings) {}
	newCommand(p, cmd, []string{"SHELL"}, none, none, func(_ *settings, args []string) error {
		write := map[string]func(io.Writer) error{
			"bash":       func(w io.Writer) error { return cmd.Root().GenBashCompletionV2(w, true) },
			"zsh":        cmd.Root().GenZshCompletion,
			"fish":       func(w io.Writer) error { return cmd.Root().GenFishCompletion(w, true) },
			"powershell": cmd.Root().GenPowerShellCompletionWithDesc,
		}[args[0]]
		if write == nil {
			return &usageError{[]string{fmt.Sprintf("there is no shell %q; want one of %s", args[0], strings.Join(completionShells, ", "))}}
		}
		if err := write(p.stdout); err != nil {
			return failf("write: %w", err)
		}
		return nil
	})
	cmd.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return completionShells, cobra.ShellCompDirectiveNoFileComp
	}
	return cmd
}

// complete offers what may stand at a place of the command line: the values of the flag before it. The library offers
// the flags' names by itself.
func (s *settings) complete(_ *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if strings.HasPrefix(begun, "--") {
		name, value, given := strings.Cut(begun[len("--"):], "=")
		if flag := s.flags.Lookup(name); given && flag != nil {
			return completeValue(flag, value)
		}
		var also []string
		if strings.HasPrefix("--help", begun) {
			also = append(also, "--help\tsay what the command does")
		}
		return also, cobra.ShellCompDirectiveNoFileComp
	}
	if flag := s.flagBefore(args); flag != nil {
		return completeValue(flag, begun)
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// flagBefore returns the flag at the end of some arguments that waits for its value; nil: none does.
func (s *settings) flagBefore(args []string) *pflag.Flag {
	for _, arg := range args {
		if arg == "--" {
			return nil
		}
	}
	if len(args) == 0 {
		return nil
	}
	name, isFlag := strings.CutPrefix(args[len(args)-1], "--")
	if flag := s.flags.Lookup(name); isFlag && flag != nil && flag.NoOptDefVal == "" {
		return flag
	}
	return nil
}

// completeValue offers the words that a flag's kind lists and that it takes, or files where it names one.
func completeValue(flag *pflag.Flag, begun string) ([]string, cobra.ShellCompDirective) {
	switch kind := flag.Value.Type(); kind {
	case "file", "path":
		return nil, cobra.ShellCompDirectiveDefault
	case "folder":
		return nil, cobra.ShellCompDirectiveFilterDirs
	default:
		v, ok := flag.Value.(interface{ accepts(text string) bool })
		if !ok {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var words []string
		for word := range strings.SplitSeq(kind, "|") { // "size|max": only max is a word that it takes
			if strings.HasPrefix(word, begun) && v.accepts(word) && word != kind {
				words = append(words, word)
			}
		}
		return words, cobra.ShellCompDirectiveNoFileComp
	}
}
