package s3sim

import (
	"context"
	"testing"
	"time"

	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/mem"
	"github.com/annalsdb/annals/objstore/storetest"
)

// noWait is a clock whose waits are over at once.
func noWait(o Options) Options {
	o.Sleep = func(ctx context.Context, _ time.Duration) error { return ctx.Err() }
	o.Elapsed = func() time.Duration { return 0 }
	return o
}

// fast are latencies that a test can wait for, with parts.
func fast() Options {
	o := Default()
	l := Latency{50 * time.Microsecond, 500 * time.Microsecond}
	o.Put, o.Get, o.Head, o.List, o.Delete = l, l, l, l, l
	o.Bandwidth = 10 << 30
	o.PartSize = 5 << 20
	return o
}

func TestConformance(t *testing.T) {
	for name, o := range map[string]Options{"real time": fast(), "no waits": noWait(Default())} {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, func(*testing.T) objstore.Store { return New(mem.New(mem.Options{}), o) })
		})
	}
}
