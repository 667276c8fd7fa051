package engine

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/objstore/metered"
	"github.com/annalsdb/annals/objstore/s3sim"
)

// attributed makes the layout of the tests below: groups, segments and runs, in which "k" is everywhere.
func attributed(l *layout) {
	oneEach(l, 40)
	l.group(16)
	l.group(16)
	var active [][]Record
	for s := range 6 {
		active = append(active, l.records(50, func(i int) (string, string) {
			return []string{"k", fmt.Sprint("a", s)}[i%2], fmt.Sprint(i)
		}))
	}
	l.segment(false, active...)
}

// attributedRead makes one read of "k" with this context.
type attributedRead func(ctx context.Context, c *core) error

func scanning(o ScanOptions) attributedRead {
	return func(ctx context.Context, c *core) error {
		it := c.Scan(ctx, []byte("k"), All(), o)
		_ = slices.Collect(it.All())
		return it.Err()
	}
}

var attributedReads = map[string]attributedRead{
	"scan":           scanning(ScanOptions{}),
	"scan a page":    scanning(ScanOptions{Limit: 7}),
	"scan from then": scanning(ScanOptions{Since: time.UnixMilli(1_000_030)}),
	"scan backward":  scanning(ScanOptions{Last: 30}),
	"count": func(ctx context.Context, c *core) error {
		_, err := c.Count(ctx, []byte("k"), Between(0, uint64(70)))
		return err
	},
	"keys": func(ctx context.Context, c *core) error {
		_, err := c.Keys(ctx, KeysOptions{})
		return err
	},
}

// Every GET that a read asks for, in whatever goroutine, is counted for the read: a benchmark of polls
// relies on it. What a read looks ahead for and then does not want may be asked for when it has its answer.
func TestGetsAreAttributedToTheRead(t *testing.T) {
	for name, read := range attributedReads {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLayout(t)
				l.env = bubbleEnv()
				attributed(l)
				store := metered.New(l.store, metered.Options{})
				c := l.open(store, 64<<20)

				ctx, asked := metered.Attribute(t.Context())
				require.NoError(t, read(ctx, c))
				synctest.Wait()
				cold := store.Stats().Ops[metered.Get]
				require.NotZero(t, asked.Calls(metered.Get))
				require.Equal(t, cold.Calls(), asked.Calls(metered.Get))
				require.Equal(t, cold.Bytes, asked.Bytes(metered.Get))

				ctx, asked = metered.Attribute(t.Context())
				require.NoError(t, read(ctx, c))
				synctest.Wait()
				require.Zero(t, asked.Calls(metered.Get), "warm")
				require.Equal(t, cold, store.Stats().Ops[metered.Get])
			})
		})
	}
}

// Reads that share requests, and send slow ones twice, have asked for as many in all as the store was asked.
func TestSharedAndHedgedGetsAreAttributedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLayout(t)
		l.env = bubbleEnv()
		attributed(l)
		store := metered.New(s3sim.New(l.store, s3sim.Default()), metered.Options{})
		c := l.open(store, 1) // keeps nothing: every round asks again
		const readers, rounds = 8, 20
		all := make(chan *metered.Requests, readers*rounds)
		for range readers {
			go func() {
				for range rounds {
					ctx, asked := metered.Attribute(t.Context())
					if err := scanning(ScanOptions{})(ctx, c); err != nil {
						t.Error(err)
					}
					all <- asked
				}
			}()
		}
		var gets uint64
		reads := make([]*metered.Requests, readers*rounds)
		for i := range reads {
			reads[i] = <-all
		}
		synctest.Wait() // what was given up has returned
		for _, asked := range reads {
			gets += asked.Calls(metered.Get)
		}
		require.Equal(t, store.Stats().Ops[metered.Get].Calls(), gets)
		require.NotZero(t, c.tables.hedge.sent.Load())

		ctx, asked := metered.Attribute(t.Context())
		require.NoError(t, scanning(ScanOptions{})(ctx, c))
		synctest.Wait()
		require.Less(t, gets, readers*rounds*asked.Calls(metered.Get), "nothing was shared")
	})
}
