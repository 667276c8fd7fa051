package fuzz

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"path"
	"runtime/metrics"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/internal/base"
	"github.com/annalsdb/annals/manifest"
)

// Mutations under right checksums: what a bug of a writer, or somebody who may write to the bucket,
// can do. The answer may be wrong then. It must come, without a panic and without more memory than the objects
// are worth. Of tables, indexes and state objects the packages test the same themselves (FuzzFile, FuzzParseIndex,
// FuzzParseList, FuzzParseShard and FuzzDecode).

// resealed are the kinds of object that are one piece under one checksum.
var resealed = []string{"LOG", "MANIFEST", "fence", "wal"}

// Places in LOG and MANIFEST (docs/format/manifest.md), and in a WAL object (docs/format/wal.md).
const (
	sumBytes          = 8
	frameHeader       = 20
	offFrameCodec     = 12
	offFrameLength    = 16
	offWALLength      = 64
	maxResealedMemory = 64 << 20 // of everything that is done with one log
)

// plain returns the objects with LOG and MANIFEST as they are without compression, so that every byte of
// them means something of its own.
func (s *specimen) plain(t *testing.T) objects {
	o := make(objects)
	for name, body := range s.objects {
		o[name] = body
	}
	state, err := manifest.DecodeState(manifestName, 0, o[manifestName])
	require.NoError(t, err)
	log, err := manifest.DecodeLog(base.LogName, o[base.LogName])
	require.NoError(t, err)
	for name, m := range map[string]proto.Message{manifestName: state, base.LogName: log} {
		message, err := proto.Marshal(m)
		require.NoError(t, err)
		b := slices.Concat(o[name][:frameHeader], message, make([]byte, sumBytes))
		b[offFrameCodec] = 0
		reseal(log.LogId, name, b)
		o[name] = b
	}
	again, err := manifest.DecodeState(manifestName, 0, o[manifestName])
	require.NoError(t, err)
	require.True(t, proto.Equal(state, again))
	return o
}

// reseal makes length and checksum of an object right, in place, if it is one piece under one checksum.
func reseal(logID []byte, name string, b []byte) {
	n := len(b) - sumBytes
	var seed uint64
	switch _, epoch, id, wal := base.ParseWALName(name); {
	case wal:
		seed = base.Seed(logID, 0, epoch, id)
		if n > offWALLength+sumBytes {
			binary.LittleEndian.PutUint64(b[offWALLength:], uint64(len(b)))
		}
	case name == base.LogName, name == manifestName:
		seed = base.Seed([]byte(path.Base(name)), 0)
		if n >= frameHeader {
			binary.LittleEndian.PutUint32(b[offFrameLength:], uint32(n-frameHeader))
		}
	default:
		return
	}
	if n > 0 {
		binary.LittleEndian.PutUint64(b[n:], base.Checksum(seed, b[:n]))
	}
}

// allocated returns the bytes that a function allocates, and whatever runs beside it.
func allocated(f func()) uint64 {
	read := func() uint64 {
		sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	before := read()
	f()
	return read() - before
}

// survives does everything with a log that any of its objects may lie about.
func (d *damaged) survives() {
	ctx, cancel := context.WithTimeout(d.t.Context(), patience)
	defer cancel()
	_, err := engine.Check(ctx, d.objects.store(d.t), engine.CheckOptions{Env: simEnv()})
	require.NoError(d.t, ctx.Err(), "%s\ncheck: %v", d.how, err)
	if r, err := engine.OpenReader(ctx, d.objects.store(d.t), engine.ReaderOptions{Env: simEnv(), CacheBytes: 1}); err == nil {
		time.Sleep(5 * time.Second)
		readAnything(ctx, r)
		require.NoError(d.t, r.Close(context.Background()))
	}
	o := specimenOptions()
	o.DisableCompaction = false
	if db, err := engine.Open(ctx, d.objects.store(d.t), o); err == nil {
		readAnything(ctx, db)
		time.Sleep(2 * takesOver) // compaction and the collector have had their turn
		readAnything(ctx, db)
		kill(db)
	}
	require.NoError(d.t, ctx.Err(), "%s\nit does not end", d.how)
}

// readAnything reads, whatever comes.
func readAnything(ctx context.Context, r engine.LogReader) {
	for _, key := range sweepKeys {
		_, _ = collect(r.Scan(ctx, []byte(key), engine.All(), engine.ScanOptions{Limit: 1000}))
		_, _ = collect(r.Scan(ctx, []byte(key), engine.All(), engine.ScanOptions{Last: 5}))
		_, _ = r.Count(ctx, []byte(key), engine.All())
	}
	_, _ = r.Keys(ctx, engine.KeysOptions{})
	_, _ = r.Segments(ctx, engine.SegmentsOptions{})
	// A replica waits for a small state that it cannot read.
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, _ = cursorsOf(ctx, r)
}

// reseals damages the specimen under right checksums and does everything with it.
func reseals(t *testing.T, mutations []mutation, name string) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpecimen(t)
		plain := s.plain(t)
		log, err := manifest.DecodeLog(base.LogName, plain[base.LogName])
		require.NoError(t, err)
		d := (&specimen{objects: plain, foreign: s.foreign}).damage(t, mutations)
		d.how = name + "\n" + d.how
		for name, body := range d.objects {
			if !bytes.Equal(body, plain[name]) {
				reseal(log.LogId, name, body)
			}
		}
		n := allocated(d.survives)
		require.Less(t, n, uint64(maxResealedMemory), d.how)
	})
}

// TestResealedObjects tries every mutator on the kinds of object that can be resealed.
func TestResealedObjects(t *testing.T) {
	seed := mutationSeed()
	rng := rand.New(rand.NewPCG(seed, 0))
	var kinds []string
	synctest.Test(t, func(t *testing.T) { kinds, _ = newSpecimen(t).objects.classes() })
	for round := range mutationRounds(t, 2) {
		for op := range mutators {
			for class := range kinds {
				if !slices.Contains(resealed, kinds[class]) {
					continue
				}
				m := mutation{op: byte(op), class: byte(class), object: byte(rng.Uint32()), other: byte(rng.Uint32()),
					at: uint16(rng.Uint32()), to: uint16(rng.Uint32())}
				reseals(t, []mutation{m}, fmt.Sprintf("seed %d, round %d, %v", seed, round, m))
				if t.Failed() {
					t.FailNow()
				}
			}
		}
	}
}

// FuzzResealedLog is TestResealedObjects with mutations that a fuzzer makes, several at once.
func FuzzResealedLog(f *testing.F) {
	for _, m := range sampleMutations() {
		f.Add(m.bytes())
	}
	f.Fuzz(func(t *testing.T, data []byte) { reseals(t, parseMutations(data), "") })
}
