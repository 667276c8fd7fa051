//go:build linux || darwin

package dir

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore"
)

// A test that needs another process runs the test binary again with these set.
const (
	helperEnv = "ANNALS_TEST_DIR_HELPER" // which helper
	rootEnv   = "ANNALS_TEST_DIR_ROOT"   // its directory
)

// counterName is the object that helpers replace.
const counterName = "counter"

func TestMain(m *testing.M) {
	helper := os.Getenv(helperEnv)
	if helper == "" {
		os.Exit(m.Run())
	}
	s, err := Open(os.Getenv(rootEnv))
	if err == nil {
		switch helper {
		case "write":
			err = helpWrite(s)
		case "count":
			err = helpCount(s)
		default:
			err = fmt.Errorf("unknown helper %q", helper)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// startHelper starts another process.
func startHelper(t *testing.T, helper, root string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), helperEnv+"="+helper, rootEnv+"="+root)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	return cmd, bufio.NewScanner(out)
}

// numbered returns a body that says its number and checks itself.
func numbered(n int) []byte {
	text := fmt.Appendf(nil, "%d\n", n)
	text = append(text, bytes.Repeat([]byte{byte(n), byte(n >> 8)}, 10<<10+n%7)...)
	sum := sha256.Sum256(text)
	return append(sum[:], text...)
}

func number(body []byte) (int, error) {
	if len(body) < sha256.Size || sha256.Sum256(body[sha256.Size:]) != [sha256.Size]byte(body[:sha256.Size]) {
		return 0, fmt.Errorf("torn body of %d bytes", len(body))
	}
	text, _, _ := strings.Cut(string(body[sha256.Size:]), "\n")
	return strconv.Atoi(text)
}

// helpWrite writes objects one after another, in new folders now and then, and
// replaces one, until it is killed. It prints each number once both Puts have
// returned.
func helpWrite(s *Store) error {
	ctx := context.Background()
	etag := ""
	for n := 1; ; n++ {
		_, err := s.Put(ctx, writtenName(n), numbered(n), objstore.PutOptions{IfAbsent: true})
		if err != nil {
			return err
		}
		res, err := s.Put(ctx, counterName, numbered(n), objstore.PutOptions{IfMatch: etag})
		if err != nil {
			return err
		}
		etag = res.ETag
		if _, err := fmt.Println(n); err != nil {
			return err
		}
	}
}

func writtenName(n int) string { return fmt.Sprintf("w/%d/%04d", n/5, n) }

// TestKilledProcessF13 kills a process while it writes. Everything that it
// reported is there and whole, and so is whatever else can be seen.
func TestKilledProcessF13(t *testing.T) {
	for range 4 {
		root := t.TempDir()
		cmd, out := startHelper(t, "write", root)
		reported := 0
		for kill := 1 + rand.IntN(25); out.Scan(); {
			n, err := strconv.Atoi(out.Text())
			require.NoError(t, err)
			reported = n
			if n == kill { // it goes on meanwhile, so this hits it anywhere
				require.NoError(t, cmd.Process.Kill())
			}
		}
		require.Error(t, cmd.Wait(), "the helper ended by itself")
		require.Positive(t, reported)

		s, err := Open(root)
		require.NoError(t, err)
		objects := allObjects(t, s)
		for name, body := range objects {
			n, err := number(body)
			require.NoError(t, err, name)
			if name != counterName {
				require.Equal(t, writtenName(n), name)
				require.LessOrEqual(t, n, reported+1, "only one Put was under way")
			}
		}
		for n := 1; n <= reported; n++ {
			require.Contains(t, objects, writtenName(n))
		}
		last, err := number(objects[counterName])
		require.NoError(t, err)
		require.GreaterOrEqual(t, last, reported)

		// The lock died with the process, and the directory can be used on.
		attrs, err := s.Head(t.Context(), counterName)
		require.NoError(t, err)
		_, err = s.Put(t.Context(), counterName, numbered(0), objstore.PutOptions{IfMatch: attrs.ETag})
		require.NoError(t, err)
	}
}

const (
	countHelpers = 3
	countEach    = 40
)

// helpCount raises a number by compare-and-swap.
func helpCount(s *Store) error {
	ctx := context.Background()
	for done := 0; done < countEach; {
		o, err := s.Get(ctx, counterName, objstore.GetOptions{})
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(string(o.Body))
		if err != nil {
			return err
		}
		_, err = s.Put(ctx, counterName, fmt.Appendf(nil, "%08d", n+1), objstore.PutOptions{IfMatch: o.ETag})
		if err == nil {
			done++
		} else if !errors.Is(err, objstore.ErrPrecondition) {
			return err
		}
	}
	return nil
}

// TestProcessesShareTheDirectory: compare-and-swap works between processes.
func TestProcessesShareTheDirectory(t *testing.T) {
	s := newStore(t)
	_, err := s.Put(t.Context(), counterName, []byte("00000000"), objstore.PutOptions{})
	require.NoError(t, err)
	var helpers []*exec.Cmd
	for range countHelpers {
		cmd, _ := startHelper(t, "count", s.root)
		helpers = append(helpers, cmd)
	}
	for _, cmd := range helpers {
		require.NoError(t, cmd.Wait())
	}
	o, err := s.Get(t.Context(), counterName, objstore.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("%08d", countHelpers*countEach), string(o.Body))
}
