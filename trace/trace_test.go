package trace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// list is a Tracer that notes what it is told.
type list struct {
	name string
	told []string
	deaf bool // it wants to know nothing
}

// listKey is under which a list keeps the operation under way, by its name.
type listKey string

func (l *list) Begin(ctx context.Context, op Op) (context.Context, Recorder) {
	l.note("begin %v in %v", op, ctx.Value(listKey(l.name)))
	if l.deaf {
		return ctx, nil
	}
	return context.WithValue(ctx, listKey(l.name), op), l
}

func (l *list) note(format string, args ...any) {
	l.told = append(l.told, fmt.Sprintf(format, args...))
}
func (l *list) Phase(name string)            { l.note("phase %s", name) }
func (l *list) Int(name string, value int64) { l.note("%s=%d", name, value) }
func (l *list) Text(name, value string)      { l.note("%s=%s", name, value) }
func (l *list) Key(name string, key []byte)  { l.note("%s=%s", name, KeyText(key)) }
func (l *list) End(err error)                { l.note("end %v", err) }

func tell(t Tracer) {
	ctx, span := Begin(t, context.Background(), Append)
	span.Phase("room")
	span.Int("bytes", 7)
	_, part := Begin(t, ctx, StorePut)
	part.Text("object", "wal")
	part.End(errors.New("no"))
	span.Key("key", []byte("k\x00"))
	span.End(nil)
}

var told = []string{"begin append in <nil>", "phase room", "bytes=7", "begin store_put in append",
	"object=wal", "end no", `key="k\x00"`, "end <nil>"}

func TestSpan(t *testing.T) {
	l := &list{name: "a"}
	tell(l)
	require.Equal(t, told, l.told)
}

func TestJoin(t *testing.T) {
	require.Nil(t, Join())
	require.Nil(t, Join(nil, nil))
	a, b, deaf := &list{name: "a"}, &list{name: "b"}, &list{name: "deaf", deaf: true}
	require.Same(t, a, Join(nil, a, nil))
	tell(Join(deaf, a, nil, b))
	require.Equal(t, told, a.told)
	require.Equal(t, told, b.told)
	require.Equal(t, []string{"begin append in <nil>", "begin store_put in <nil>"}, deaf.told)
	_, span := Begin(Join(deaf, &list{deaf: true}), t.Context(), Scan)
	require.False(t, span.Wanted())
}

// Nobody who asks costs nothing: every operation of the log begins a span.
func TestNobodyAllocates(t *testing.T) {
	ctx, key := t.Context(), []byte("key")
	require.Zero(t, testing.AllocsPerRun(100, func() {
		inner, span := Begin(nil, ctx, Append)
		span.Phase("room")
		span.Int("bytes", 1<<40)
		span.Key("key", key)
		span.End(inner.Err())
	}))
}

// Names are what operators see: they must differ, and stay.
func TestOps(t *testing.T) {
	kinds := map[Kind][]string{}
	for op := range Op(NumOps) {
		kinds[op.Kind()] = append(kinds[op.Kind()], op.String())
	}
	require.Equal(t, map[Kind][]string{
		Foreground: {"request", "append", "scan", "count", "keys", "segments", "cursors", "set_cursors"},
		Background: {"open", "wal_put", "flush", "seal", "commit", "compaction", "retention", "garbage", "replica"},
		Store: {"store_put", "store_get", "store_head", "store_list", "store_delete", "store_time",
			"store_abort_uploads"},
	}, kinds)
	require.Equal(t, fmt.Sprintf("Op(%d)", NumOps), Op(NumOps).String())
}

func TestPhases(t *testing.T) {
	var p Phases
	p.Add("read", time.Second)
	p.Add(Caller, time.Minute)
	p.Add("read", time.Second)
	require.Equal(t, 2, p.Len())
	require.Equal(t, []time.Duration{2 * time.Second, time.Minute, 0}, []time.Duration{p.Of("read"), p.Of(Caller), p.Of("x")})
	for i := range 20 {
		p.Add(strings.Repeat("x", i+1), time.Hour)
	}
	require.Equal(t, maxPhases, p.Len())
	var sum time.Duration
	for i := range p.Len() {
		_, took := p.At(i)
		sum += took
	}
	require.Equal(t, 20*time.Hour+time.Minute+2*time.Second, sum, "nothing is lost")
}

func TestKeyText(t *testing.T) {
	require.Equal(t, `""`, KeyText(nil))
	require.Equal(t, `"a\xff\n"`, KeyText([]byte("a\xff\n")))
	long := bytes.Repeat([]byte("k"), 4096)
	require.Equal(t, `"`+strings.Repeat("k", 64)+`"... (4096 bytes)`, KeyText(long))
}

func TestRemote(t *testing.T) {
	_, ok := RemoteOf(t.Context())
	require.False(t, ok)
	want := Remote{Parent: "00-…", State: "a=b"}
	got, ok := RemoteOf(WithRemote(t.Context(), want))
	require.True(t, ok)
	require.Equal(t, want, got)
}
