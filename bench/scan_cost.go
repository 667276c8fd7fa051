package bench

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/annalsdb/annals/objstore/metered"
)

// readCosts adds up what reads of one kind asked of the store. Safe for concurrent use.
type readCosts struct {
	reads, records, gets, bytes, cold atomic.Uint64
}

// count counts a read that asked for so much.
func (c *readCosts) count(asked *metered.Requests, records int) {
	c.reads.Add(1)
	c.records.Add(uint64(records))
	gets := asked.Calls(metered.Get)
	c.gets.Add(gets)
	c.bytes.Add(asked.Bytes(metered.Get))
	if gets > 0 {
		c.cold.Add(1)
	}
}

// ReadCost is what reads of one kind cost.
type ReadCost struct {
	Latency        Latency  `json:"latency"`
	Reads          uint64   `json:"reads"`
	RecordsPerRead float64  `json:"records_per_read"`
	GetsPerRead    *float64 `json:"gets_per_read,omitempty"`      // unless the engine is elsewhere
	BytesPerRead   *float64 `json:"get_bytes_per_read,omitempty"` // read from the store
	Cold           *float64 `json:"reads_with_gets,omitempty"`    // the share of reads that caused a GET
}

// cost returns what they cost; the requests only if they can be told apart from those of others.
func (c *readCosts) cost(of *Recorder, attributed bool) ReadCost {
	reads := float64(c.reads.Load())
	per := func(n *atomic.Uint64) *float64 {
		v := ratio(float64(n.Load()), reads)
		return &v
	}
	cost := ReadCost{Latency: of.Latency(), Reads: c.reads.Load(), RecordsPerRead: *per(&c.records)}
	if attributed {
		cost.GetsPerRead, cost.BytesPerRead, cost.Cold = per(&c.gets), per(&c.bytes), per(&c.cold)
	}
	return cost
}

// String writes it in two lines.
func (c ReadCost) String() string {
	s := fmt.Sprintf("%v\n%d reads of %.2f records", c.Latency, c.Reads, c.RecordsPerRead)
	if c.GetsPerRead != nil {
		s += fmt.Sprintf(", %.3f GETs each, %.2f%% with any, %s each", *c.GetsPerRead, 100**c.Cold, formatBytes(*c.BytesPerRead))
	}
	return s
}

// attributed reports whether the requests of an operation can be told apart: they are made with its context.
func (r *Run) attributed() bool {
	_, yes := r.Target.(*Embedded)
	return yes
}

// attribute is metered.Attribute where that is of use, else no requests.
func (r *Run) attribute(ctx context.Context) (context.Context, *metered.Requests) {
	if !r.attributed() {
		return ctx, &metered.Requests{}
	}
	return metered.Attribute(ctx)
}
