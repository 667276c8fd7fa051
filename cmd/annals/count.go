package main

import (
	"bufio"
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/annalsdb/annals/client"
)

const countLong = `Prints how many records a key has, exactly. With --json one object:

  {"key":"user-17","count":42}

` + keyLong

type countConfig struct {
	connection
	seqRange
	json bool
}

func newCount(p *process) *cobra.Command {
	var c countConfig
	cmd := &cobra.Command{Use: "count [flags] KEY", Short: "Print how many records a key has", Long: countLong}
	define := func(s *settings) {
		s.flags.BoolVar(&c.json, "json", false, "print one JSON object")
		c.seqRange.addFlags(s, "count from this sequence on", "count what is before this sequence")
	}
	check := func(s *settings, args []string) {
		c.seqRange.check(s)
		checkKeys(s, args)
	}
	return remoteCommand(p, &c.connection, cmd, []string{"KEY"}, define, check,
		func(ctx context.Context, api *client.Client, out *bufio.Writer, args []string) error {
			key, err := parseKey(args[0])
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, requestTimeout)
			defer cancel()
			n, err := api.Count(ctx, key, c.from, c.to)
			if err != nil {
				return err
			}
			if !c.json {
				_, err = fmt.Fprintln(out, n)
				return err
			}
			line := append(appendJSONMember([]byte{'{'}, "key", key), `,"count":`...)
			_, err = out.Write(append(strconv.AppendUint(line, n, 10), "}\n"...))
			return err
		})
}
