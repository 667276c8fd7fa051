package client

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCursors(t *testing.T) {
	c, ctx := newPair(t), t.Context()
	for _, name := range []string{"mail out", "..", "100%é{}"} {
		page, err := c.Cursors(ctx, name, CursorsOptions{})
		require.NoError(t, err)
		require.Empty(t, page.Cursors)
		inForce, err := c.SetCursors(ctx, name, []Cursor{{Key: []byte{0xff}, Next: 7}, {Key: nil, Next: 1}}, false)
		require.NoError(t, err)
		require.Equal(t, uint64(7), inForce[0].Next)
		inForce, err = c.SetCursors(ctx, name, []Cursor{{Key: []byte{0xff}, Next: 3}}, false)
		require.NoError(t, err)
		require.Equal(t, []Cursor{{Key: []byte{0xff}, Next: 7}}, inForce, "forward only")
		inForce, err = c.SetCursors(ctx, name, []Cursor{{Key: []byte{0xff}, Next: 3}}, true)
		require.NoError(t, err)
		require.Equal(t, []Cursor{{Key: []byte{0xff}, Next: 3}}, inForce)

		page, err = c.Cursors(ctx, name, CursorsOptions{Limit: 1})
		require.NoError(t, err)
		require.Len(t, page.Cursors, 1)
		require.NotNil(t, page.Next, "the empty key is a key")
		page, err = c.Cursors(ctx, name, CursorsOptions{Limit: 1, After: page.Next})
		require.NoError(t, err)
		require.Equal(t, CursorsPage{Cursors: []Cursor{{Key: []byte{0xff}, Next: 3}}}, page)
		some, err := c.CursorsOf(ctx, name, []byte("none"), []byte{0xff})
		require.NoError(t, err)
		require.Equal(t, page.Cursors, some)
	}
	some, err := c.CursorsOf(ctx, "..")
	require.NoError(t, err)
	require.Empty(t, some)
	_, err = c.SetCursors(ctx, "..", nil, false)
	require.NoError(t, err)

	consumers, err := c.Consumers(ctx, ConsumersOptions{Limit: 2})
	require.NoError(t, err)
	require.Equal(t, ConsumersPage{Consumers: []string{"..", "100%é{}"}, Next: "100%é{}"}, consumers)
	consumers, err = c.Consumers(ctx, ConsumersOptions{After: consumers.Next})
	require.NoError(t, err)
	require.Equal(t, ConsumersPage{Consumers: []string{"mail out"}}, consumers)

	require.NoError(t, c.DeleteCursors(ctx, ".."))
	require.NoError(t, c.DeleteCursors(ctx, "..", []byte{0xff}))
	page, err := c.Cursors(ctx, "..", CursorsOptions{})
	require.NoError(t, err)
	require.Len(t, page.Cursors, 1)
	require.NoError(t, c.DeleteConsumer(ctx, ".."))
	consumers, err = c.Consumers(ctx, ConsumersOptions{})
	require.NoError(t, err)
	require.Equal(t, []string{"100%é{}", "mail out"}, consumers.Consumers)

	for name, status := range map[string]int{"": http.StatusNotFound, "a/b": http.StatusBadRequest, strings.Repeat("c", 129): http.StatusBadRequest} {
		_, err := c.Cursors(ctx, name, CursorsOptions{})
		var answer *Error
		require.ErrorAs(t, err, &answer)
		require.Equal(t, status, answer.Status, name)
	}
}

func TestConflictsOfALog(t *testing.T) {
	c, ctx := newPair(t), t.Context()
	expect := AppendOptions{ExpectedNext: []KeySequence{{Key: []byte("k")}}}
	_, err := c.Append(ctx, one("v"), expect)
	require.NoError(t, err)
	_, err = c.Append(ctx, one("v"), expect)
	var conflict *ConflictError
	require.ErrorAs(t, err, &conflict)
	require.Equal(t, "k", string(conflict.Key))
	require.Zero(t, conflict.LastSequence)
	require.True(t, NotAppended(err))

	p := c.NewProducer(ProducerOptions{ID: "p"})
	first, err := p.Append(ctx, one("w"), AppendOptions{})
	require.NoError(t, err)
	again, err := c.NewProducer(ProducerOptions{ID: "p"}).Append(ctx, one("w"), AppendOptions{})
	require.NoError(t, err)
	require.Equal(t, first, again)
	_, err = c.NewProducer(ProducerOptions{ID: "p", Next: 9}).Append(ctx, one("w"), AppendOptions{})
	var number *SequenceError
	require.ErrorAs(t, err, &number)
	require.Zero(t, number.Last)
	n, err := c.Count(ctx, []byte("k"), 0, 0)
	require.NoError(t, err)
	require.Equal(t, uint64(2), n)
}
