package wal

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/annalsdb/annals/internal/base"
)

// FuzzDecode decodes hostile bytes, as they are and with the checksum made right, so
// that what lies behind the checksum is reached.
func FuzzDecode(f *testing.F) {
	f.Add(goldenObject())
	f.Add(EncodeFence(testIdent, testEpoch, 9, 6))
	f.Add(objectOf(goldenHeader, 1000))
	f.Add(objectOf(goldenHeader, 1010))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, body []byte) {
		check := func(body []byte) {
			before := bytes.Clone(body)
			o, err := decodeGolden(body)
			require.Equal(t, before, body)
			if err != nil {
				return
			}
			// What was accepted is coherent, and is what a builder makes of it.
			if o.Fence {
				require.Equal(t, body, EncodeFence(o.Identity, o.Epoch, o.ID, o.Fencer))
				return
			}
			require.Equal(t, body, rebuild(o))
		}
		check(body)
		if len(body) >= checksumSize {
			check(seal(bytes.Clone(body)))
		}
	})
}

// rebuild builds an object from a decoded one. A producer mark may precede its batch in
// what Decode accepts but not in what Builder makes, so marks are encoded by hand.
func rebuild(o *Object) []byte {
	b := NewBuilder(o.Header, nil)
	var recs []base.Record
	for e := range o.Entries() {
		switch e.Type {
		case EntryBatch:
			recs = e.Batch.AppendRecords(recs[:0])
			b.AddBatch(e.Batch.First, e.Batch.Timestamp, recs)
		case EntryCursor:
			b.AddCursor(e.Cursor)
		case EntryProducer:
			end := b.header.End
			b.header.End = o.End
			b.AddProducer(e.Producer)
			b.header.End = end
		}
	}
	return b.Finish()
}

// FuzzEntries puts hostile entries into an object whose frame is right, whatever their length: unknown types, marks
// and cursors of any shape, batches that are cut.
func FuzzEntries(f *testing.F) {
	golden := goldenObject()
	o, err := decodeGolden(golden)
	require.NoError(f, err)
	entries := golden[headerSize : len(golden)-checksumSize]
	f.Add(entries, uint32(o.Len()), o.First, o.End)
	f.Add([]byte{}, uint32(0), uint64(7), uint64(7))
	f.Add([]byte{9, 0, 0, 0, 0, 0, 0, 0}, uint32(1), uint64(7), uint64(7)) // a type of a later version
	for e := range o.Entries() {
		f.Add(entries[:e.Size()], uint32(1), o.First, o.First)
		entries = entries[e.Size():]
	}
	f.Fuzz(func(t *testing.T, entries []byte, count uint32, first, end uint64) {
		h := rawHeader{Header: o.Header, entries: count, length: uint64(minRecordSize + len(entries))}
		h.First, h.End, h.PrevEnd = first, end, first
		body := append(make([]byte, headerSize, minRecordSize+len(entries)), entries...)
		h.marshal(body)
		body = seal(append(body, make([]byte, checksumSize)...))
		got, err := decodeGolden(body)
		if err != nil {
			require.ErrorIs(t, err, base.ErrCorrupt)
			return
		}
		require.Equal(t, int(count), got.Len())
		require.Equal(t, body, rebuild(got))
		size, records := 0, uint64(0)
		for e := range got.Entries() {
			size += e.Size()
			if e.Type == EntryBatch {
				records += uint64(e.Batch.Count)
			}
		}
		require.Equal(t, len(entries), size)
		require.Equal(t, end-first, records)
	})
}

// What a slot of an epoch holds, for FuzzEpoch.
const (
	slotRecord   = iota
	slotMissing  // nothing
	slotFence    // of a later writer
	slotGap      // a record that begins above the end of the one before
	slotDamaged  // a record with a wrong bit
	slotAnothers // the record of the next slot
	slotKinds
)

// FuzzEpoch replays an epoch whose slots hold anything. Records come up to the first fence, in order; what is missing or
// wrong before it is an error and never the end of the log. The tail finds the same.
func FuzzEpoch(f *testing.F) {
	f.Add([]byte{slotRecord, slotRecord, slotFence, slotRecord})
	f.Add([]byte{slotRecord, slotGap, slotRecord, slotFence})
	f.Add([]byte{slotFence})
	f.Add([]byte{slotRecord, slotMissing, slotFence})
	f.Add([]byte{slotRecord, slotRecord, slotRecord, slotRecord, slotDamaged, slotFence})
	f.Add([]byte{slotRecord, slotAnothers, slotFence})
	f.Fuzz(func(t *testing.T, slots []byte) {
		slots = slots[:min(len(slots), 20)]
		s := newFaultyStore()
		want, fence, damage := uint64(0), uint64(0), error(ErrMissing)
		end, over := uint64(100), false
		for i, slot := range slots {
			id := uint64(i) + 1
			kind := int(slot) % slotKinds
			body := slotBody(kind, id, end)
			if body != nil {
				putObject(t, s.Store, id, body)
			}
			switch {
			case over:
			case kind == slotRecord, kind == slotGap && id == 1: // an epoch may begin above
				want, end = id, end+1
			case kind == slotFence:
				fence, damage, over = id, nil, true
			case kind != slotMissing:
				damage, over = base.ErrCorrupt, true
			default:
				over = true
			}
			if kind == slotGap && id == 1 {
				end += 10
			}
		}
		ids, at, err := replayed(t, s, 1, Chain{Started: true, End: 100})
		require.Equal(t, seq(1, want), ids)
		require.Equal(t, fence, at)
		require.ErrorIs(t, err, damage)
		tailed(t, s, want, fence)
	})
}

// slotBody returns the object of a slot whose epoch ends at a sequence, or nil.
func slotBody(kind int, id, end uint64) []byte {
	switch kind {
	case slotMissing:
		return nil
	case slotFence:
		return EncodeFence(testIdent, testEpoch, id, testEpoch+1)
	case slotGap:
		return testObject(id, end+10, end+11)
	case slotAnothers:
		return testObject(id+1, end, end+1)
	}
	body := testObject(id, end, end+1)
	if kind == slotDamaged {
		body[len(body)/2] ^= 1
	}
	return body
}

// tailed requires that a tail returns the objects up to a fence, or, without one, at least those that replay accepts:
// it does not look at the chain.
func tailed(t *testing.T, s *faultyStore, records, fence uint64) {
	tail := NewTail(s, testEnv(1), testIdent)
	next := uint64(1)
	for {
		look := tail.Look(t.Context(), testEpoch, next)
		for i, o := range look.Objects {
			require.Equal(t, next, o.ID)
			require.True(t, !o.Fence || i == len(look.Objects)-1)
			if o.Fence {
				require.True(t, fence == 0 || o.ID == fence)
				return
			}
			next++
		}
		if look.End != nil {
			require.Zero(t, fence)
			require.Greater(t, next, records)
			return
		}
	}
}

// FuzzRoundTrip is TestRoundTrip on what a fuzzer draws.
func FuzzRoundTrip(f *testing.F) {
	draws := make([]byte, 8<<10)
	_, _ = rand.NewChaCha8([32]byte{}).Read(draws) // never fails
	f.Add(draws)
	f.Fuzz(rapid.MakeFuzz(roundTrip))
}
