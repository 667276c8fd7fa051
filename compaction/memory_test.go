package compaction

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/annalsdb/annals/objstore/fault"
)

// livePeak runs f and returns by how much the memory in use was ever above what it was before. It looks at every request
// that goes through sample: when all other goroutines wait, for a request or for one another, it has the garbage
// collector run and counts what is left. Garbage is left out, of which there is as much as the collector, the machine
// and its load let grow: the figure is the same wherever the test runs.
func livePeak(t *testing.T, f func(t *testing.T, sample fault.Hook)) (peak int64) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		runtime.GC() // what is in pools goes at the second
		before := liveHeap()
		turn := make(chan struct{}, 1)
		f(t, func(context.Context, fault.Op) fault.Plan {
			turn <- struct{}{}
			synctest.Wait()
			peak = max(peak, liveHeap()-before)
			<-turn
			return fault.Plan{}
		})
	})
	return peak
}

// liveHeap collects garbage and returns the bytes that are left.
func liveHeap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
