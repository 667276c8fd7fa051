package sst

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/annalsdb/annals/internal/base"
)

// A table all of whose checksums are right must also say the truth about itself: Verify finds what no reader that looks
// for a key would.
func TestVerifyFindsLies(t *testing.T) {
	for name, c := range map[string]struct {
		lie  func(w *Writer) // before the last key, block and partitions are written
		want string          // "": all is well
	}{
		"the truth":                 {func(*Writer) {}, ""},
		"directory: first sequence": {func(w *Writer) { w.entry[dirFirst]-- }, "the directory entry of a key does not fit its records"},
		"directory: last sequence":  {func(w *Writer) { w.entry[dirLast]++ }, "the directory entry of a key does not fit its records"},
		"directory: count":          {func(w *Writer) { w.entry[dirCount]++ }, "the directory entry of a key does not fit its records"},
		"directory: block":          {func(w *Writer) { w.entry[dirBlock]-- }, "the directory entry of a key does not fit its records"},
		"directory: ordinal":        {func(w *Writer) { w.entry[dirOrdinal]-- }, "the directory entry of a key does not fit its records"},
		"directory: another key":    {func(w *Writer) { w.key = []byte("key 99z") }, "the directory entry of a key does not fit its records"},
		"directory: a key too many": {func(w *Writer) {
			w.endKey()
			w.prevKey, w.key = w.key, []byte("key 99z")
		}, "the directory has too many keys"},
		"index: sequence": {func(w *Writer) { w.first[fieldSequence]++ }, "is not the one of which the index tells"},
		"index: time":     {func(w *Writer) { w.first[fieldTime]++ }, "is not the one of which the index tells"},
		"index: key":      {func(w *Writer) { w.blockIn = append(w.blockIn, 'z') }, "the index gives the data block another first record"},
		"filter":          {func(w *Writer) { w.hashes[len(w.hashes)-1] = ^w.hashes[0] }, "the filter lacks a key"},
		"records":         {func(w *Writer) { w.props.Records++ }, "records, not"},
		"keys":            {func(w *Writer) { w.props.Keys++ }, "the properties do not fit the records"},
		"bytes":           {func(w *Writer) { w.props.Bytes++ }, "the properties do not fit the records"},
		"first sequence":  {func(w *Writer) { w.props.FirstSequence-- }, "the properties do not fit the records"},
		"last sequence":   {func(w *Writer) { w.props.LastSequence++ }, "the properties do not fit the records"},
		"first timestamp": {func(w *Writer) { w.props.FirstTimestamp-- }, "the properties do not fit the records"},
		"last timestamp":  {func(w *Writer) { w.props.LastTimestamp++ }, "the properties do not fit the records"},
		"first key":       {func(w *Writer) { w.props.FirstKey = []byte("key 0") }, "the properties do not fit the records"},
		"data blocks":     {func(w *Writer) { w.flushBlock(); w.props.Blocks++ }, "the properties do not fit the records"},
	} {
		t.Run(name, func(t *testing.T) {
			w := NewWriter(WriterOptions{ID: testID, BlockBytes: 256})
			for i := range 100 {
				for j := range 3 {
					w.Add(fmt.Appendf(nil, "key %02d", i), uint64(1000+10*i+j), int64(i+j), []byte("value"))
				}
			}
			c.lie(w)
			body, info := w.Finish()
			r, err := Open(t.Context(), ReaderOptions{
				Name: "lie", ID: testID, Size: info.Size, MetaOffset: info.MetaOffset, Source: &memSource{body: body},
			})
			if err == nil {
				err = r.Verify(t.Context(), nil)
			}
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, base.ErrCorrupt)
			require.ErrorContains(t, err, c.want)
		})
	}
}
