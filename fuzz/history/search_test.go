package history

import (
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// drawOps makes a few operations on one key, at random times.
func drawOps(t *rapid.T) []linearOp {
	times := func() (call, ret time.Duration) {
		call = time.Duration(rapid.IntRange(0, 12).Draw(t, "call"))
		ret = call + time.Duration(rapid.IntRange(0, 8).Draw(t, "length"))
		if rapid.IntRange(0, 7).Draw(t, "answered") == 0 {
			ret = never
		}
		return call, ret
	}
	var ops []linearOp
	length := 0
	for range rapid.IntRange(0, 5).Draw(t, "appends") {
		o := linearOp{op: len(ops), append: true, from: length, to: length + rapid.IntRange(1, 2).Draw(t, "records")}
		o.call, o.ret = times()
		length = o.to
		ops = append(ops, o)
	}
	for range rapid.IntRange(0, 5).Draw(t, "reads") {
		o := linearOp{op: len(ops), low: rapid.IntRange(0, length).Draw(t, "low")}
		o.high = rapid.IntRange(o.low-1, length).Draw(t, "high")
		o.call, o.ret = times()
		ops = append(ops, o)
	}
	return rapid.Permutation(ops).Draw(t, "order")
}

// The narrower times lose no order and allow none that there is not: porcupine finds the same without them.
func TestTightenKeepsOrders(t *testing.T) {
	found := map[bool]int{}
	judge := func(t *rapid.T) {
		ops := drawOps(t)
		plain := make([]porcupine.Operation, len(ops))
		for i := range ops {
			o := ops[i]
			plain[i] = porcupine.Operation{ClientId: i, Input: &o, Call: int64(o.call), Return: int64(o.ret)}
		}
		want := porcupine.CheckOperations(linearModel(0), plain)
		found[want]++
		if x := tighten(ops); x != nil {
			require.False(t, want, "operations %v leave no time, and there is an order", x.Operations)
			return
		}
		got := searchKey(ops, time.Now().Add(time.Minute))
		require.Equal(t, want, got == porcupine.Ok)
		require.True(t, want, "what has no order leaves times to all")
	}
	rapid.Check(t, func(t *rapid.T) {
		for range 40 {
			judge(t)
		}
	})
	t.Log(found)
	require.Greater(t, found[true], 5)
	require.Greater(t, found[false], 5)
}

// A history that is cut into pieces is judged as it is whole.
func TestPieces(t *testing.T) {
	var ops []linearOp
	for i := range 3 * leastPiece {
		ops = append(ops, linearOp{op: i, call: time.Duration(10 * i), ret: time.Duration(10*i + 9), append: true, from: i, to: i + 1})
	}
	require.Equal(t, leastPiece, piece(ops))
	require.Equal(t, porcupine.Ok, searchKey(ops, time.Now().Add(time.Minute)))
	ops[leastPiece+7].from++
	require.Equal(t, porcupine.Illegal, searchKey(ops, time.Now().Add(time.Minute)))
	ops[leastPiece+7].from--
	ops[0].ret = never // it cannot be cut any more
	require.Equal(t, len(ops), piece(ops))
	many := append(ops, make([]linearOp, mostPiece)...)
	require.Equal(t, porcupine.Unknown, searchKey(many, time.Now().Add(time.Minute)))
}
