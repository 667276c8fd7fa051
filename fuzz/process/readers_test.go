package process

import (
	"context"
	"time"

	"github.com/annalsdb/annals/client"
	"github.com/annalsdb/annals/fuzz/history"
)

// anyKey returns a key of any kind, mostly of the current round.
func (a *actor) anyKey() string {
	round := a.w.round()
	if a.rng.IntN(5) == 0 {
		round = a.rng.IntN(round + 1)
	}
	return keyName(pick(a.rng, plainKeys, ifKeys, onceKeys), round, a.rng.IntN(keysOf))
}

// read asks for everything that can be read, at writers and replicas.
func (w *world) read(ctx context.Context, i int) {
	a := w.newActor("reader", i)
	a.loop(ctx, func(ctx context.Context) (bool, error) {
		n, err := a.reader(ctx)
		if err != nil {
			return false, err
		}
		switch a.rng.IntN(10) {
		case 0, 1:
			return a.count(ctx, n)
		case 2:
			return a.keys(ctx, n)
		case 3:
			return a.scan(ctx, n, a.anyKey(), client.ScanOptions{Last: 1 + a.rng.IntN(8)})
		case 4:
			key := a.anyKey()
			return a.scan(ctx, n, key, client.ScanOptions{Start: a.seen[key], Limit: 50, Follow: true, Timeout: 300 * time.Millisecond})
		case 5:
			key := a.anyKey()
			at := a.seen[key]
			return a.scan(ctx, n, key, client.ScanOptions{Start: at - min(at, 500), End: at + uint64(a.rng.IntN(200)) + 1, Limit: 40})
		default:
			key := a.anyKey()
			o := client.ScanOptions{Start: a.seen[key], Limit: 1 + a.rng.IntN(60)}
			if a.rng.IntN(3) == 0 {
				o.Start = 0
			}
			return a.scan(ctx, n, key, o)
		}
	})
}

// scan reads one page of a key.
func (a *actor) scan(ctx context.Context, n *node, key string, o client.ScanOptions) (bool, error) {
	call, err := a.begin(n, history.Operation{Scan: &history.Scan{Key: key, Start: o.Start, End: o.End, Last: o.Last, Limit: o.Limit}})
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	page, answer := n.front.client.Scan(ctx, []byte(key), o)
	if answer != nil {
		return false, a.notRead(call, answer)
	}
	call.Scan.Next = page.Next
	for _, v := range page.Values {
		call.Scan.Records = append(call.Scan.Records, history.Record{Sequence: v.Sequence, Timestamp: v.Timestamp, Value: history.Text(v.Value)})
	}
	if o.End == 0 {
		a.seen[key] = page.Next
	}
	return true, call.End(history.OK, nil)
}

// notRead takes down that a read was not answered.
func (a *actor) notRead(call *history.Call, answer error) error {
	if err := call.End(history.Unknown, answer); err != nil {
		return err
	}
	return a.unexpected(answer)
}

// count counts a key's records, all or a part.
func (a *actor) count(ctx context.Context, n *node) (bool, error) {
	key := a.anyKey()
	op := &history.Count{Key: key}
	if at := a.seen[key]; a.rng.IntN(2) == 0 {
		op.Start, op.End = at-min(at, uint64(a.rng.IntN(1000))), at+uint64(a.rng.IntN(100))+1
	}
	call, err := a.begin(n, history.Operation{Count: op})
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	count, answer := n.front.client.Count(ctx, []byte(key), op.Start, op.End)
	if answer != nil {
		return false, a.notRead(call, answer)
	}
	call.Count.Count = count
	return true, call.End(history.OK, nil)
}

// keys lists a page of keys of a kind.
func (a *actor) keys(ctx context.Context, n *node) (bool, error) {
	op := &history.Keys{Prefix: pick(a.rng, plainKeys, ifKeys, onceKeys) + "/"}
	o := client.KeysOptions{Prefix: []byte(op.Prefix), Limit: 1 + a.rng.IntN(20)}
	if a.rng.IntN(2) == 0 {
		after := a.anyKey()
		op.After, o.After = &after, []byte(after)
	}
	call, err := a.begin(n, history.Operation{Keys: op})
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	page, answer := n.front.client.Keys(ctx, o)
	if answer != nil {
		return false, a.notRead(call, answer)
	}
	for _, k := range page.Keys {
		call.Keys.Keys = append(call.Keys.Keys, history.Text(k))
	}
	call.Keys.More = page.Next != nil
	return true, call.End(history.OK, nil)
}

// moveCursors moves a consumer's cursors forward, and reads those of all consumers anywhere.
func (w *world) moveCursors(ctx context.Context, i, consumers int) {
	a := w.newActor("consumer", i)
	at := make(map[string]uint64)
	a.loop(ctx, func(ctx context.Context) (bool, error) {
		if a.rng.IntN(2) == 0 {
			n, err := a.reader(ctx)
			if err != nil {
				return false, err
			}
			return a.getCursors(ctx, n, consumerName(a.rng.IntN(consumers)))
		}
		n, err := a.writer(ctx)
		if err != nil {
			return false, err
		}
		var cursors []client.Cursor
		first := a.rng.IntN(keysOf)
		for k := range 1 + a.rng.IntN(3) {
			key := keyName(plainKeys, 0, (first+k)%keysOf)
			at[key] += uint64(a.rng.IntN(10))
			cursors = append(cursors, client.Cursor{Key: []byte(key), Next: at[key]})
		}
		return a.setCursors(ctx, n, consumerName(i), cursors)
	})
}

func consumerName(i int) string { return "consumer-" + string(rune('a'+i)) }

func positions(cursors []client.Cursor) (all []history.KeySequence) {
	for _, c := range cursors {
		all = append(all, history.KeySequence{Key: history.Text(c.Key), Sequence: c.Next})
	}
	return all
}

func (a *actor) setCursors(ctx context.Context, n *node, consumer string, cursors []client.Cursor) (bool, error) {
	call, err := a.begin(n, history.Operation{SetCursors: &history.SetCursors{Consumer: consumer, Cursors: positions(cursors)}})
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, appendWithin)
	defer cancel()
	now, answer := n.front.client.SetCursors(ctx, consumer, cursors, false)
	if answer != nil {
		return false, a.notRead(call, answer)
	}
	call.SetCursors.Answer = positions(now)
	return true, call.End(history.OK, nil)
}

func (a *actor) getCursors(ctx context.Context, n *node, consumer string) (bool, error) {
	op := &history.GetCursors{Consumer: consumer}
	var keys [][]byte
	for i := range keysOf {
		op.Keys = append(op.Keys, keyName(plainKeys, 0, i))
		keys = append(keys, []byte(op.Keys[i]))
	}
	call, err := a.begin(n, history.Operation{GetCursors: op})
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	now, answer := n.front.client.CursorsOf(ctx, consumer, keys...)
	if answer != nil {
		return false, a.notRead(call, answer)
	}
	call.GetCursors.Answer = positions(now)
	return true, call.End(history.OK, nil)
}
