package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/annalsdb/annals/client"
	"github.com/annalsdb/annals/wire"
)

const cursorsLong = `Shows and changes where consumers go on. A cursor belongs to a consumer and a key: the sequence that it reads next.`

const cursorsForm = `Each cursor is printed on a line, the sequence first:

  17 user-17

With --json one object a line:

  {"nextSequence":17,"key":"user-17"}

` + keyLong

func newCursors(p *process) *cobra.Command {
	root := &cobra.Command{Use: "cursors", Short: "Show and change where consumers go on", Long: cursorsLong, Args: cobra.ArbitraryArgs}
	root.RunE = func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return &usageError{[]string{"one of list, get, set and delete is missing"}}
		}
		return &usageError{[]string{fmt.Sprintf("unknown command %q%s", args[0], didYouMean("", args[0], commandNames(root)))}}
	}
	root.AddCommand(newCursorsList(p), newCursorsGet(p), newCursorsSet(p), newCursorsDelete(p))
	return root
}

// cursorsConfig is what the flags of all these commands say.
type cursorsConfig struct {
	connection
	json  bool
	force bool
	all   bool
}

// checkConsumer records what is wrong with the first argument, a consumer, and the keys behind it.
func checkConsumer(s *settings, args []string) {
	if err := wire.ValidateConsumer(args[0]); err != nil {
		s.fault("%v", err)
	}
	checkKeys(s, args[1:])
}

func (c *cursorsConfig) defineJSON(s *settings) {
	s.flags.BoolVar(&c.json, "json", false, "print one JSON object a line")
}

func newCursorsList(p *process) *cobra.Command {
	var c cursorsConfig
	cmd := &cobra.Command{Use: "list [flags]", Short: "Print the consumers that have cursors, one a line"}
	return remoteCommand(p, &c.connection, cmd, nil, c.defineJSON, func(*settings, []string) {},
		func(ctx context.Context, api *client.Client, out *bufio.Writer, _ []string) error {
			for o := (client.ConsumersOptions{Limit: wire.MaxCursors}); ; {
				ctx, cancel := context.WithTimeout(ctx, requestTimeout)
				page, err := api.Consumers(ctx, o)
				cancel()
				if err != nil {
					return err
				}
				for _, name := range page.Consumers {
					c.printConsumer(out, name)
				}
				if page.Next == "" {
					return nil
				}
				o.After = page.Next
			}
		})
}

func newCursorsGet(p *process) *cobra.Command {
	var c cursorsConfig
	cmd := &cobra.Command{Use: "get [flags] CONSUMER [KEY...]", Short: "Print a consumer's cursors, of all keys or of some"}
	cmd.Long = cmd.Short + ".\n\n" + cursorsForm
	return remoteCommand(p, &c.connection, cmd, []string{"CONSUMER", "[KEY...]"}, c.defineJSON, checkConsumer,
		func(ctx context.Context, api *client.Client, out *bufio.Writer, args []string) error {
			if len(args) > 1 {
				ctx, cancel := context.WithTimeout(ctx, requestTimeout)
				defer cancel()
				keys, err := keysOf(args[1:])
				if err != nil {
					return err
				}
				cursors, err := api.CursorsOf(ctx, args[0], keys...)
				c.print(out, cursors)
				return err
			}
			for o := (client.CursorsOptions{Limit: wire.MaxCursors}); ; {
				ctx, cancel := context.WithTimeout(ctx, requestTimeout)
				page, err := api.Cursors(ctx, args[0], o)
				cancel()
				if err != nil {
					return err
				}
				c.print(out, page.Cursors)
				if page.Next == nil {
					return nil
				}
				o.After = page.Next
			}
		})
}

func newCursorsSet(p *process) *cobra.Command {
	var c cursorsConfig
	cmd := &cobra.Command{Use: "set [flags] CONSUMER KEY SEQUENCE",
		Short: "Move a consumer's cursor forward, and print the one that is in force then"}
	cmd.Long = cmd.Short + ".\n\n" + cursorsForm
	parse := parseCount(0, math.MaxUint64)
	define := func(s *settings) {
		c.defineJSON(s)
		s.flags.BoolVar(&c.force, "force", false, "move it backward, too")
	}
	check := func(s *settings, args []string) {
		checkConsumer(s, args[:2])
		if _, err := parse(args[2]); err != nil {
			s.fault("SEQUENCE: %v", err)
		}
	}
	return remoteCommand(p, &c.connection, cmd, []string{"CONSUMER", "KEY", "SEQUENCE"}, define, check,
		func(ctx context.Context, api *client.Client, out *bufio.Writer, args []string) error {
			next, err := parse(args[2])
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, requestTimeout)
			defer cancel()
			key, err := parseKey(args[1])
			if err != nil {
				return err
			}
			cursors, err := api.SetCursors(ctx, args[0], []client.Cursor{{Key: key, Next: next}}, c.force)
			c.print(out, cursors)
			return err
		})
}

const cursorsDeleteForm = `It prints nothing. With --json it prints one object once they are gone: the consumer, and the keys that were named. After
--all there are no keys in it:

  {"consumer":"mailer","deleted":[{"key":"user-17"},{"keyB64":"/wo="}]}
  {"consumer":"mailer","deleted":"all"}

A cursor that was not there counts as deleted.

` + keyLong

func newCursorsDelete(p *process) *cobra.Command {
	var c cursorsConfig
	cmd := &cobra.Command{Use: "delete [flags] CONSUMER [KEY...]", Short: "Delete a consumer's cursors of some keys, or all of them"}
	cmd.Long = cmd.Short + ".\n\n" + cursorsDeleteForm
	define := func(s *settings) {
		s.flags.BoolVar(&c.json, "json", false, "print one JSON object that says what was deleted")
		s.flags.BoolVar(&c.all, "all", false, "delete all cursors of the consumer; needed where no KEY is given")
	}
	check := func(s *settings, args []string) {
		checkConsumer(s, args)
		switch keys := len(args) - 1; {
		case keys == 0 && !c.all:
			s.fault("KEY is missing; --all deletes all cursors of the consumer")
		case keys > 0 && c.all:
			s.fault("--all and KEY exclude each other")
		}
	}
	return remoteCommand(p, &c.connection, cmd, []string{"CONSUMER", "[KEY...]"}, define, check,
		func(ctx context.Context, api *client.Client, out *bufio.Writer, args []string) error {
			ctx, cancel := context.WithTimeout(ctx, requestTimeout)
			defer cancel()
			keys, err := keysOf(args[1:])
			if err != nil {
				return err
			}
			if c.all {
				err = api.DeleteConsumer(ctx, args[0])
			} else {
				err = api.DeleteCursors(ctx, args[0], keys...)
			}
			if err == nil && c.json {
				printDeleted(out, args[0], keys)
			}
			return err
		})
}

// printDeleted writes which cursors of a consumer were deleted, those of all keys if none is named.
func printDeleted(out io.Writer, consumer string, keys [][]byte) {
	line := appendJSONMember([]byte{'{'}, "consumer", []byte(consumer))
	if len(keys) == 0 {
		fmt.Fprintf(out, "%s,\"deleted\":\"all\"}\n", line)
		return
	}
	line = append(line, `,"deleted":[`...)
	for i, key := range keys {
		if i > 0 {
			line = append(line, ',')
		}
		line = append(appendJSONMember(append(line, '{'), "key", key), '}')
	}
	fmt.Fprintf(out, "%s]}\n", line)
}

// printConsumer writes a consumer on a line.
func (c *cursorsConfig) printConsumer(out io.Writer, name string) {
	if c.json {
		name = string(appendJSONMember([]byte{'{'}, "consumer", []byte(name))) + "}"
	}
	fmt.Fprintln(out, name)
}

// print writes cursors, one a line. What fails is reported when out is flushed.
func (c *cursorsConfig) print(out io.Writer, cursors []client.Cursor) {
	for _, cur := range cursors {
		if !c.json {
			fmt.Fprintf(out, "%d %s\n", cur.Next, keyText(cur.Key))
			continue
		}
		line := strconv.AppendUint([]byte(`{"nextSequence":`), cur.Next, 10)
		line = appendJSONMember(line, "key", cur.Key)
		fmt.Fprintf(out, "%s}\n", line)
	}
}
