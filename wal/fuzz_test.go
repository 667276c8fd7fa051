package wal

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

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
