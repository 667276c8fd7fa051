package bench

import "math/rand/v2"

// BatchOptions say what an append has.
type BatchOptions struct {
	KeyOptions
	ValueOptions
	Records int // of a batch
}

// MaxBatch bounds the records of a batch.
const MaxBatch = 100_000

// maxBatchBytes bounds the mean bytes of a batch: what a server takes in one request.
const maxBatchBytes = 16 << 20

// Bytes returns the mean key and value bytes of a batch.
func (o *BatchOptions) Bytes() int64 { return int64(o.Records) * int64(o.Size+KeySize) }

// Faults returns what is wrong with the options.
func (o *BatchOptions) Faults() []string {
	faults := append(o.KeyOptions.Faults(), o.ValueOptions.Faults()...)
	if o.Records < 1 || o.Records > MaxBatch {
		faults = append(faults, faultf("--batch is %d; it must be from 1 to %d", o.Records, MaxBatch))
	} else if len(faults) == 0 && o.Bytes() > maxBatchBytes {
		faults = append(faults, faultf("--batch of %d records has %d bytes; it may have %d: lower --batch or --value-size", o.Records, o.Bytes(), maxBatchBytes))
	}
	return faults
}

// Batches makes the batches of a load. Which records the n-th one has depends on the seed and n alone, whoever makes it.
type Batches struct {
	o      BatchOptions
	values *Values
	seed   uint64
}

// Batches returns the batches of a load; loads of different streams differ.
func (r *Run) Batches(stream uint64, o BatchOptions) *Batches {
	rnd := r.Rand(stream)
	return &Batches{o: o, values: NewValues(o.ValueOptions, rnd), seed: rnd.Uint64()}
}

// Maker returns what makes batches in one goroutine. It allocates nothing later on.
func (b *Batches) Maker() *BatchMaker {
	m := &BatchMaker{b: b, recs: make([]Record, b.o.Records), keys: make([]byte, 0, b.o.Records*KeySize)}
	m.rnd = rand.New(&m.source)
	m.pick = NewKeyPicker(b.o.KeyOptions, m.rnd)
	return m
}

// BatchMaker makes batches. It belongs to one goroutine.
type BatchMaker struct {
	b      *Batches
	source rand.PCG
	rnd    *rand.Rand
	pick   *KeyPicker
	recs   []Record
	keys   []byte
}

// Make returns the n-th batch and its key and value bytes. It is valid until the next call.
func (m *BatchMaker) Make(n uint64) (recs []Record, size int64) {
	m.source.Seed(m.b.seed, n)
	m.keys = m.keys[:0]
	first := n * uint64(len(m.recs))
	for i := range m.recs {
		at := len(m.keys)
		m.keys = AppendKey(m.keys, m.pick.Pick(first+uint64(i)))
		rec := &m.recs[i]
		rec.Key, rec.Value = m.keys[at:len(m.keys):len(m.keys)], m.b.values.Next(m.rnd)
		size += int64(rec.Size())
	}
	return m.recs, size
}
