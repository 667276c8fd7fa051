package state

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/annalsdb/annals/internal/base"
)

// modelLimit is how many producers are remembered in the model test.
const modelLimit = 5

// model does with plain maps what Tables does.
type model struct{ contents }

func (m *model) clone() *model {
	c := &model{contents{map[string]map[string]uint64{}, maps.Clone(m.Producers)}}
	for name, cursors := range m.Cursors {
		c.Cursors[name] = maps.Clone(cursors)
	}
	return c
}

func (m *model) set(consumer, key string, next uint64) {
	if m.Cursors[consumer] == nil {
		m.Cursors[consumer] = map[string]uint64{}
	}
	m.Cursors[consumer][key] = next
}

func (m *model) delete(consumer, key string) {
	delete(m.Cursors[consumer], key)
	if len(m.Cursors[consumer]) == 0 {
		delete(m.Cursors, consumer)
	}
}

func (m *model) mark(producer string, mark Mark) {
	list := m.Producers[producer]
	if list == nil && len(m.Producers) == modelLimit {
		last := func(name string) uint64 { l := m.Producers[name]; return l[len(l)-1].First }
		oldest := slices.MinFunc(slices.Collect(maps.Keys(m.Producers)), func(a, b string) int { return int(last(a)) - int(last(b)) })
		delete(m.Producers, oldest)
	}
	if len(list) > 0 && list[len(list)-1].Sequence+1 != mark.Sequence {
		list = nil
	}
	list = append(slices.Clone(list), mark)
	m.Producers[producer] = list[max(0, len(list)-ProducerWindow):]
}

// modelTest is a random history of tables, their clones and their objects.
type modelTest struct {
	live  *Tables
	model *model
	// Clones that must not change any more, and what they hold.
	clones []*Tables
	models []*model
	// The objects in force, and what they hold.
	ids           int
	base, changes base.ULID
	baseBody      []byte
	changesBody   []byte
	saved         *model
	first         uint64 // the next log sequence
}

var (
	consumerGen = rapid.SampledFrom([]string{"a", "b", "mailer", "z\x00"})
	// Few distinct keys, so that they are met again; some of them long, so that blocks are cut by bytes.
	keyGen = rapid.Custom(func(t *rapid.T) string {
		key := fmt.Sprintf("%03d", rapid.IntRange(0, 400).Draw(t, "key"))
		switch rapid.IntRange(0, 9).Draw(t, "length") {
		case 0:
			return key[:rapid.IntRange(0, 2).Draw(t, "cut")]
		case 1:
			return key + string(make([]byte, 4000))
		}
		return key
	})
)

// Random changes, clones, objects of both kinds and restarts from them: tables hold what a model of maps holds, clones do
// not change, and the objects in force are exactly the snapshot that they were written from.
func TestModel(t *testing.T) { rapid.Check(t, changes) }

func changes(t *rapid.T) {
	limits := Limits{Producers: modelLimit}
	m := &modelTest{live: New(limits), model: &model{contents{map[string]map[string]uint64{}, map[string][]Mark{}}}}
	m.saved = m.model.clone()
	t.Repeat(map[string]func(*rapid.T){
		"set":     m.set,
		"set run": m.setRun,
		"delete": func(t *rapid.T) {
			consumer, key := consumerGen.Draw(t, "consumer"), keyGen.Draw(t, "key")
			m.live.DeleteCursor(consumer, []byte(key))
			m.model.delete(consumer, key)
		},
		"delete run": m.deleteRun,
		"delete consumer": func(t *rapid.T) {
			consumer := consumerGen.Draw(t, "consumer")
			m.live.DeleteConsumer(consumer)
			delete(m.model.Cursors, consumer)
		},
		"mark":    m.mark,
		"clone":   func(*rapid.T) { m.keepClone(m.live.Clone()) },
		"save":    m.save,
		"restart": m.restart,
		"":        m.check,
	})
}

func (m *modelTest) set(t *rapid.T) {
	consumer, key, next := consumerGen.Draw(t, "consumer"), keyGen.Draw(t, "key"), rapid.Uint64().Draw(t, "next")
	m.live.SetCursor(consumer, []byte(key), next)
	m.model.set(consumer, key, next)
}

func (m *modelTest) setRun(t *rapid.T) {
	consumer, n := consumerGen.Draw(t, "consumer"), rapid.IntRange(1, 300).Draw(t, "n")
	step := rapid.SampledFrom([]int{1, 7, -1}).Draw(t, "step")
	for i := range n {
		key := fmt.Sprintf("%03d", (i*step%400+400)%400)
		m.live.SetCursor(consumer, []byte(key), uint64(i))
		m.model.set(consumer, key, uint64(i))
	}
}

func (m *modelTest) deleteRun(t *rapid.T) {
	consumer, from := consumerGen.Draw(t, "consumer"), rapid.IntRange(0, 400).Draw(t, "from")
	for i := from; i < from+rapid.IntRange(1, 300).Draw(t, "n"); i++ {
		key := fmt.Sprintf("%03d", i)
		m.live.DeleteCursor(consumer, []byte(key))
		m.model.delete(consumer, key)
	}
}

func (m *modelTest) mark(t *rapid.T) {
	producer := fmt.Sprintf("p%d", rapid.IntRange(0, 2*modelLimit).Draw(t, "producer"))
	for range rapid.SampledFrom([]int{1, 1, 1, 70}).Draw(t, "n") {
		sequence := rapid.Uint64Range(0, 3).Draw(t, "sequence")
		if last, ok := m.live.LastOf(producer); ok {
			_, found := m.live.Lookup(producer, last+1)
			require.Equal(t, Fresh, found)
			sequence = last + 1 + sequence/3 // rarely a gap: what a lower limit in an earlier life allowed
		}
		mark := Mark{Sequence: sequence, First: m.first, Count: rapid.Uint32Range(1, 9).Draw(t, "count"),
			Timestamp: rapid.Int64().Draw(t, "timestamp")}
		m.first += uint64(mark.Count)
		m.live.Mark(producer, mark)
		m.model.mark(producer, mark)
	}
}

func (m *modelTest) keepClone(c *Tables) {
	m.clones, m.models = append(m.clones, c), append(m.models, m.model.clone())
	if len(m.clones) > 2 {
		m.clones, m.models = m.clones[1:], m.models[1:]
	}
}

// save does what a flush does: it writes a clone while the live tables go on, and says so when it is in force.
func (m *modelTest) save(t *rapid.T) {
	clone, saved := m.live.Clone(), m.model.clone()
	for range rapid.IntRange(0, 3).Draw(t, "meanwhile") {
		m.set(t)
	}
	later, laterModel := m.live.Clone(), m.model.clone()
	m.ids++
	if id := idOf(m.ids); m.baseBody == nil || rapid.IntRange(0, 2).Draw(t, "base") == 0 {
		m.base, m.baseBody, m.changesBody = id, clone.EncodeBase(id), nil
		m.live.Rebase(clone)
		later.Rebase(clone)
	} else {
		m.changes, m.changesBody = id, clone.EncodeChanges(id, m.base)
	}
	m.saved = saved
	require.Equal(t, saved.contents, contentsOf(t, m.load(t)))

	// The next flush, of a clone that was made before this one's commit.
	if rapid.Bool().Draw(t, "next too") {
		m.ids++
		m.changes, m.changesBody, m.saved = idOf(m.ids), later.EncodeChanges(idOf(m.ids), m.base), laterModel
		require.Equal(t, laterModel.contents, contentsOf(t, m.load(t)))
	}
}

// load reads the objects in force.
func (m *modelTest) load(t *rapid.T) *Tables {
	tables, err := DecodeBase("base", m.base, m.baseBody, Limits{Producers: modelLimit})
	require.NoError(t, err)
	if m.changesBody != nil {
		require.NoError(t, tables.DecodeChanges("changes", m.changes, m.base, m.changesBody))
	}
	checkTables(t, tables)
	return tables
}

// restart goes on from what the objects in force hold.
func (m *modelTest) restart(t *rapid.T) {
	if m.baseBody != nil {
		m.live, m.model = m.load(t), m.saved.clone()
	}
}

func (m *modelTest) check(t *rapid.T) {
	checkTables(t, m.live)
	require.Equal(t, m.model.contents, contentsOf(t, m.live))
	for i, c := range m.clones {
		checkTables(t, c)
		require.Equal(t, m.models[i].contents, contentsOf(t, c), "a clone changed")
	}
	consumers, cursors, producers := m.live.Counts()
	require.Equal(t, len(m.model.Cursors), consumers)
	require.Equal(t, len(m.model.Producers), producers)
	for _, list := range m.model.Cursors {
		cursors -= len(list)
	}
	require.Zero(t, cursors)
}
