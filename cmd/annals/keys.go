package main

import (
	"bufio"
	"context"
	"math"

	"github.com/spf13/cobra"

	"github.com/annalsdb/annals/client"
)

const keysLong = `Prints the distinct keys of the log in byte order, one a line. With --json one object a line:

  {"key":"user-17"}

` + keyLong

// keysPage is how many keys one request asks for.
const keysPage = 10_000

type keysConfig struct {
	connection
	json          bool
	prefix, after []byte
	limit         uint64
	fromSegment   uint32
	toSegment     uint32
}

func newKeys(p *process) *cobra.Command {
	var c keysConfig
	cmd := &cobra.Command{Use: "keys [flags]", Short: "Print the keys of the log", Long: keysLong}
	define := func(s *settings) {
		s.flags.BoolVar(&c.json, "json", false, "print one JSON object a line")
		addFlag(s, "prefix", "key", "", &c.prefix, parseKey, "only keys that begin with this (default: all)")
		addFlag(s, "after", "key", "", &c.after, parseKey, "only keys behind this one, such as the last one of a list before (default: all)")
		addFlag(s, "limit", "count", "", &c.limit, parseCount(1, math.MaxUint64), "print this many keys at most (default: all)")
		addFlag(s, "from-segment", "id", "", &c.fromSegment, parseSegment, "only keys with records in this segment or a later one (default: all)")
		addFlag(s, "to-segment", "id", "", &c.toSegment, parseSegment, "only keys with records in segments before this one (default: all)")
	}
	check := func(s *settings, _ []string) {
		if c.fromSegment > 0 && c.toSegment > 0 && c.fromSegment >= c.toSegment {
			s.fault("--from-segment %d is not below --to-segment %d", c.fromSegment, c.toSegment)
		}
	}
	return remoteCommand(p, &c.connection, cmd, nil, define, check, c.print)
}

// parseSegment reads the id of a segment.
func parseSegment(text string) (uint32, error) {
	n, err := parseCount(1, math.MaxUint32)(text)
	return uint32(n), err
}

// print writes page after page.
func (c *keysConfig) print(ctx context.Context, api *client.Client, out *bufio.Writer, _ []string) error {
	left := c.limit
	if left == 0 {
		left = math.MaxUint64
	}
	o := client.KeysOptions{Prefix: c.prefix, After: c.after, StartSegment: c.fromSegment, EndSegment: c.toSegment}
	for left > 0 {
		o.Limit = int(min(left, keysPage))
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		page, err := api.Keys(ctx, o)
		cancel()
		if err != nil {
			return err
		}
		for _, key := range page.Keys {
			if err := c.printKey(out, key); err != nil {
				return err
			}
		}
		if page.Next == nil {
			return nil
		}
		left -= min(left, uint64(len(page.Keys)))
		o.After = page.Next
	}
	return nil
}

func (c *keysConfig) printKey(out *bufio.Writer, key []byte) error {
	line := []byte(keyText(key))
	if c.json {
		line = append(appendJSONMember([]byte{'{'}, "key", key), '}')
	}
	_, err := out.Write(append(line, '\n'))
	return err
}
