package bench

import (
	"runtime/metrics"
	"time"

	"github.com/annalsdb/annals/objstore/metered"
)

// memoryEvery is how often memory is looked at.
const memoryEvery = 2 * time.Millisecond

// memoryWatch finds the most memory that is in use above what was at its start.
type memoryWatch struct {
	store *metered.Store // whose objects do not count, for they are in memory too; nil: they are not
	start int64
	peak  int64 // of the goroutine; read when it has ended
	quit  chan struct{}
	done  chan struct{}
}

// watchMemory starts a watch.
func watchMemory(store *metered.Store, inMemory bool) *memoryWatch {
	m := &memoryWatch{quit: make(chan struct{}), done: make(chan struct{})}
	if inMemory {
		m.store = store
	}
	m.start = m.now()
	go m.run()
	return m
}

// now is the heap, its garbage included, and all stacks, without what was put into the store.
func (m *memoryWatch) now() int64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(s)
	n := int64(s[0].Value.Uint64() + s[1].Value.Uint64())
	if m.store != nil {
		stats := m.store.Stats()
		n -= int64(stats.Ops[metered.Put].Bytes)
	}
	return n
}

func (m *memoryWatch) run() {
	defer close(m.done)
	tick := time.NewTicker(memoryEvery)
	defer tick.Stop()
	for {
		m.peak = max(m.peak, m.now()-m.start)
		select {
		case <-tick.C:
		case <-m.quit:
			m.peak = max(m.peak, m.now()-m.start)
			return
		}
	}
}

// stop ends the watch and returns the peak.
func (m *memoryWatch) stop() uint64 {
	close(m.quit)
	<-m.done
	return uint64(max(m.peak, 0))
}
