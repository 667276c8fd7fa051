package bench

import (
	"fmt"
	"time"

	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/metered"
)

// Prices are a provider's list prices in US dollars, without discounts and free tiers. Transfer costs nothing: the
// log runs in the bucket's region.
type Prices struct {
	// Name says whose they are, where and when.
	Name string
	// Put is the price of 1,000 requests that write or list: PUT, POST, LIST, and each request of a multipart upload.
	Put float64
	// Get is the price of 1,000 requests that read: GET and HEAD.
	Get float64
	// Storage is the price of pricedGB bytes for a month.
	Storage float64
}

// ListPrices are those of S3 Standard. Deleting is free. Storage is at the price of the first 50 TB; what
// is above costs 4 to 9% less.
var ListPrices = Prices{Name: "S3 Standard, us-east-1, list prices of 2025", Put: 0.005, Get: 0.0004, Storage: 0.023}

const (
	// pricedGB are the bytes that S3 bills as 1 GB.
	pricedGB = 1 << 30
	// month is what "a month" means in costs.
	month = 30 * 24 * time.Hour
)

// Usage is what costs something.
type Usage struct {
	// Requests are those of Seconds. Where the store tells what it sent, that counts, as it is what is
	// billed; else the calls.
	Requests metered.Stats
	// Seconds is how long was measured.
	Seconds float64
	// StoredBytes are in the store at the end, as far as the manifest knows: tables, and what waits to be deleted.
	StoredBytes uint64
	// AddedBytes came in Seconds, and stay unless they are dropped: the tables that were flushed; if there was none, what was appended.
	AddedBytes uint64
}

// Cost is what a month would cost that is as the measured time was.
type Cost struct {
	Prices string  `json:"prices"`
	Puts   float64 `json:"puts_per_month"` // and listings
	Gets   float64 `json:"gets_per_month"`

	PutDollars float64 `json:"put_dollars_per_month"`
	GetDollars float64 `json:"get_dollars_per_month"`

	StoredBytes    uint64  `json:"stored_bytes"`
	StorageDollars float64 `json:"storage_dollars_per_month"` // of StoredBytes

	// A month of it adds so many bytes, which cost so much in every month in which they are kept.
	AddedBytes   float64 `json:"added_bytes_per_month"`
	AddedDollars float64 `json:"added_storage_dollars_per_month"`

	// Dollars are those of requests and of StoredBytes.
	Dollars float64 `json:"dollars_per_month"`
}

// PerMonth returns the cost of a month; false when nothing was measured.
func (p Prices) PerMonth(u Usage) (Cost, bool) {
	if u.Seconds <= 0 {
		return Cost{}, false
	}
	months := month.Seconds() / u.Seconds
	puts, gets := billed(u.Requests)
	c := Cost{Prices: p.Name, StoredBytes: u.StoredBytes, Puts: float64(puts) * months, Gets: float64(gets) * months, AddedBytes: float64(u.AddedBytes) * months}
	c.PutDollars = c.Puts / 1000 * p.Put
	c.GetDollars = c.Gets / 1000 * p.Get
	c.StorageDollars = float64(u.StoredBytes) / pricedGB * p.Storage
	c.AddedDollars = c.AddedBytes / pricedGB * p.Storage
	c.Dollars = c.PutDollars + c.GetDollars + c.StorageDollars
	return c, true
}

// write adds the cost to the report for people.
func (c *Cost) write(t *text) {
	t.line("cost of a month like this", fmt.Sprintf("$%.2f (%s)", c.Dollars, c.Prices))
	t.line("  PUT and LIST", fmt.Sprintf("$%.2f for %s", c.PutDollars, formatNumber(c.Puts)))
	t.line("  GET", fmt.Sprintf("$%.2f for %s", c.GetDollars, formatNumber(c.Gets)))
	t.line("  storage", fmt.Sprintf("$%.2f for %s", c.StorageDollars, formatBytes(float64(c.StoredBytes))))
	t.line("  storage that it adds", fmt.Sprintf("%s a month, $%.2f in each month in which they are kept", formatBytes(c.AddedBytes), c.AddedDollars))
}

// setCost sets the cost, if it is known what was asked of the store.
func (rep *Report) setCost(p Prices) {
	if rep.Store == nil || rep.Log == nil {
		return
	}
	added := rep.Log.FlushedBytes
	if rep.Log.Flushes == 0 {
		added = rep.Log.AppendedBytes // all of it is still to be flushed, and compressed: less
	}
	c, ok := p.PerMonth(Usage{
		Requests: rep.stats, Seconds: rep.Seconds,
		StoredBytes: rep.Log.StoredBytes + rep.Log.ObsoleteBytes, AddedBytes: added,
	})
	if ok {
		rep.Cost = &c
	}
}

// billed returns how many requests are billed as writes or listings, and how many as reads. S3
// bills what it served and what it refused (4xx), not that it was overloaded or failed (5xx). A request whose answer was lost may have
// been served: it counts.
func billed(s metered.Stats) (puts, gets uint64) {
	if s.Sent == nil {
		for op := range metered.Op(metered.NumOps) {
			switch n := s.Ops[op].Calls(); op {
			case metered.Get, metered.Head:
				gets += n
			case metered.Delete:
			default:
				puts += n // the time is asked for by a listing
			}
		}
		return puts, gets
	}
	for _, r := range s.Sent {
		n := r.Count[objstore.AnswerOK] + r.Count[objstore.AnswerRefused] + r.Count[objstore.AnswerNone]
		switch r.Operation {
		case "GetObject", "HeadObject":
			gets += n
		case "DeleteObjects", "AbortMultipartUpload":
		default:
			puts += n // what we do not know is billed as the dearer kind
		}
	}
	return puts, gets
}
