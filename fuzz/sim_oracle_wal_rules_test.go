package fuzz

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore"
	"github.com/annalsdb/annals/objstore/fault"
	walfile "github.com/annalsdb/annals/wal"
)

// TestSimOracleCatchesWAL breaks each rule of the WAL.
func TestSimOracleCatchesWAL(t *testing.T) {
	none := engine.AppendOptions{}
	catches(t, []forgery{
		{"other bytes under an id", "I1: process 100 puts other bytes", func(f *forge) {
			one, two := f.value("a"), f.value("a")
			f.ask(none, one)
			f.ask(none, two)
			f.send(4, f.object(4, 7, nil, records(7, one)))
			f.send(4, f.object(4, 7, nil, records(7, two)))
		}},
		{"without a condition", "I2: process 100 puts (1, 4) without a condition", func(f *forge) {
			f.o.sent(f.p, fault.Op{Kind: fault.Put, Name: wal(1, 4)})
		}},
		{"an epoch that nobody took", "no MANIFEST knows", func(f *forge) {
			f.o.sent(f.p, fault.Op{Kind: fault.Put, Name: wal(2, 1), PutOptions: objstore.PutOptions{IfAbsent: true}})
		}},
		{"another writer", "I2: process 100 puts (1, 4) as writer", func(f *forge) {
			f.send(4, f.object(4, 7, func(h *walfile.Header) { h.Writer[0]++ }, records(7, f.value("a"))))
		}},
		{"what is durable", "I1: object (1, 5) says that all up to 4 is durable", func(f *forge) {
			f.send(5, f.object(5, 7, func(h *walfile.Header) { h.Durable = 4 }, records(7, f.value("a"))))
		}},
		{"a gap in the chain", "I4: object (1, 4) follows sequence 6", func(f *forge) {
			f.send(4, f.object(4, 7, func(h *walfile.Header) { h.PrevEnd = 6 }, records(7, f.value("a"))))
		}},
		{"above seq_limit", "I3: object (1, 4) has sequences up to", func(f *forge) {
			limit := f.o.head.state.GetSeqLimit()
			f.send(4, f.object(4, limit, nil, records(limit, f.value("a"))))
		}},
		{"into the next epoch", "I3: object (1, 4) has sequences", func(f *forge) {
			limit := f.o.head.state.GetSeqLimit()
			f.takeover()
			f.send(4, f.object(4, limit, nil, records(limit, f.value("a"))))
		}},
		{"a sequence again", "I3: sequence 7 names", func(f *forge) {
			one, two := f.value("a"), f.value("a")
			f.answer(f.ask(engine.AppendOptions{Ack: engine.Memory}, one), 7, 7, nil)
			f.ask(none, two)
			f.send(4, f.object(4, 7, nil, records(7, two)))
		}},
		{"that nobody asked for", "I4: nobody has asked", func(f *forge) {
			f.send(4, f.object(4, 7, nil, records(7, f.value("a"))))
		}},
		{"half a batch", "I4: nobody has asked", func(f *forge) {
			recs := f.batch("a", "b")
			f.ask(none, recs...)
			f.send(4, f.object(4, 7, nil, records(7, recs[0])))
		}},
		{"what was refused", "F48: the batch [7, 8)", func(f *forge) {
			rec := f.value("a")
			f.answer(f.ask(none, rec), 0, 0, &engine.AppendError{Outcome: engine.NotAppended, Err: engine.ErrOverloaded})
			f.send(4, f.object(4, 7, nil, records(7, rec)))
		}},
		{"refused after all", "F48: process 100 says", func(f *forge) {
			c := f.landBatch(4, 7, none, f.value("a"))
			f.answer(c, 0, 0, &engine.AppendError{Outcome: engine.NotAppended, Err: engine.ErrFenced})
		}},
		{"a year ahead", "F17: the batch [7, 8)", func(f *forge) {
			rec := f.value("a")
			f.ask(none, rec)
			f.send(4, f.object(4, 7, nil, func(b *walfile.Builder) {
				b.AddBatch(7, time.Now().Add(365*24*time.Hour).UnixMilli(), []engine.Record{rec})
			}))
		}},
		{"timestamps fall", "F17: the batch [7, 8) in (1, 4) has timestamp", func(f *forge) {
			rec := f.value("a")
			f.ask(none, rec)
			f.land(4, f.object(4, 7, nil, func(b *walfile.Builder) { b.AddBatch(7, 1, []engine.Record{rec}) }))
		}},
		{"twice", "is in the log again, at sequence 8", func(f *forge) {
			rec := f.value("a")
			f.landBatch(4, 7, none, rec)
			f.landBatch(5, 8, none, rec)
		}},
		{"an older segment", "I6: object (1, 4) is of segment 1", func(f *forge) {
			rec := f.value("a")
			f.ask(none, rec)
			f.land(4, f.object(4, 7, func(h *walfile.Header) { h.Segment = 1 }, records(7, rec)))
		}},
		{"a fence above a gap", "I2: a fence landed at (1, 5)", func(f *forge) {
			f.takeover()
			f.land(5, walfile.EncodeFence(f.o.log.identity(), 1, 5, 2))
		}},
		{"a fence of nobody", "I2: process 100 fences (1, 4) for epoch 2", func(f *forge) {
			f.send(4, walfile.EncodeFence(f.o.log.identity(), 1, 4, 2))
		}},
		{"damaged", "I8: process 100 puts an object", func(f *forge) {
			body := f.object(4, 7, nil, records(7, f.value("a")))
			body[40]++
			f.send(4, body)
		}},
		{"other bytes land", "I1: (1, 4) landed with bytes", func(f *forge) {
			op := f.send(4, f.object(4, 7, nil))
			op.Body = f.object(4, 8, nil)
			f.o.applied(f.p, op, nil)
		}},
	})
}

// TestSimOracleCatchesAcknowledgements acknowledges what is not in the log, or not as was said.
func TestSimOracleCatchesAcknowledgements(t *testing.T) {
	none := engine.AppendOptions{}
	number := engine.AppendOptions{Producer: "p", ProducerSequence: 5}
	mark := func(n, first uint64, ms int64) func(b *walfile.Builder) {
		return func(b *walfile.Builder) {
			b.AddProducer(walfile.ProducerMark{Producer: "p", Sequence: n, First: first, Count: 1, Timestamp: ms})
		}
	}
	catches(t, []forgery{
		{"on its way (I1)", "I1: append", func(f *forge) {
			rec := f.value("a")
			c := f.ask(none, rec)
			f.send(4, f.object(4, 7, nil, records(7, rec)))
			f.answer(c, 7, 7, nil)
		}},
		{"behind a gap (F6)", "and not in the log", func(f *forge) {
			f.ask(none)
			f.send(4, f.object(4, 7, nil))
			f.answer(f.landBatch(5, 7, none, f.value("a")), 7, 7, nil)
		}},
		{"behind a fence (F5)", "and not in the log", func(f *forge) {
			f.takeover()
			f.land(4, walfile.EncodeFence(f.o.log.identity(), 1, 4, 2))
			f.ask(none)
			f.send(4, f.object(4, 7, nil))
			f.answer(f.landBatch(5, 7, none, f.value("a")), 7, 7, nil)
		}},
		{"as a part", "is in the log as a part of [7, 9)", func(f *forge) {
			recs := f.batch("a", "b")
			f.landBatch(4, 7, none, recs...)
			f.answer(f.ask(none, recs[0]), 7, 7, nil)
		}},
		{"too many sequences", "of 1 records was given sequences 7 to 8", func(f *forge) {
			f.answer(f.landBatch(4, 7, none, f.value("a")), 7, 8, nil)
		}},
		{"sequences of another epoch", "which that epoch may not assign", func(f *forge) {
			limit := f.o.head.state.GetSeqLimit()
			f.takeover()
			f.answer(f.ask(engine.AppendOptions{Ack: engine.Memory}, f.value("a")), limit, limit, nil)
		}},
		{"without the mark", "without the mark of its producer", func(f *forge) {
			f.landBatch(4, 7, number, f.value("a"))
		}},
		{"a mark of nothing", "a client asked for it: false", func(f *forge) {
			rec := f.value("a")
			f.ask(none, rec)
			f.land(4, f.object(4, 7, nil, records(7, rec), mark(5, 7, time.Now().UnixMilli())))
		}},
		{"a number twice", "it is 1 by what is before it", func(f *forge) {
			for i := range uint64(2) {
				rec := f.value("a")
				f.ask(number, rec)
				f.land(4+i, f.object(4+i, 7+i, nil, records(7+i, rec), mark(5, 7+i, time.Now().UnixMilli())))
			}
		}},
		{"another answer to a repeat", "is a repeat of what was given", func(f *forge) {
			rec := f.value("a")
			c := f.ask(number, rec)
			f.land(4, f.object(4, 7, nil, records(7, rec), mark(5, 7, time.Now().UnixMilli())))
			f.answer(c, 7, 7, nil)
			require.NoError(f.t, f.o.err())
			f.ended(simCall{kind: simAppend, records: []engine.Record{rec}, append: number, ack: engine.Durable,
				res: engine.AppendResult{First: 6, Last: 6, Timestamp: c.res.Timestamp, Repeated: true}})
		}},
		{"two answers to a number", "and before", func(f *forge) {
			rec := f.value("a")
			c := f.ask(number, rec)
			f.land(4, f.object(4, 7, nil, records(7, rec), mark(5, 7, time.Now().UnixMilli())))
			f.answer(c, 7, 7, nil)
			f.answer(f.ask(engine.AppendOptions{Producer: "p", ProducerSequence: 5, Ack: engine.Memory}, f.value("a")), 8, 8, nil)
		}},
		{"a number refused", "refuses append 5 of producer", func(f *forge) {
			f.answer(f.ask(number, f.value("a")), 0, 0, &engine.AppendError{Outcome: engine.NotAppended,
				Err: &engine.ProducerError{Producer: "p", Sequence: 5, Last: 4}})
		}},
		{"an expectation that does not hold", "key \"a\" has a record 5 that its client did not expect", func(f *forge) {
			f.landBatch(4, 7, engine.AppendOptions{ExpectedNext: []engine.KeySequence{{Key: []byte("a"), Next: 4}}}, f.value("a"))
		}},
		{"refused for what is not", "was refused for a record 5 of key \"b\"", func(f *forge) {
			f.answer(f.ask(engine.AppendOptions{ExpectedNext: []engine.KeySequence{{Key: []byte("b"), Next: 5}}}, f.value("b")), 0, 0,
				&engine.AppendError{Outcome: engine.NotAppended, Err: &engine.ConditionError{Key: []byte("b"), Last: 5}})
		}},
		{"refused for what is expected", "which it does not expect (false)", func(f *forge) {
			f.answer(f.ask(engine.AppendOptions{ExpectedNext: []engine.KeySequence{{Key: []byte("a"), Next: 9}}}, f.value("a")), 0, 0,
				&engine.AppendError{Outcome: engine.NotAppended, Err: &engine.ConditionError{Key: []byte("a"), Last: 6}})
		}},
		{"an error without an outcome", "does not say its outcome", func(f *forge) {
			f.answer(f.ask(none, f.value("a")), 0, 0, engine.ErrClosed)
		}},
		{"an empty batch", "was given", func(f *forge) { f.answer(f.ask(none), 7, 7, nil) }},
	})
}
