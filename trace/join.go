package trace

import "context"

// Join returns a Tracer that tells each of several. Those that are nil are left out;
// of none it is nil, of one that one.
func Join(tracers ...Tracer) Tracer {
	var some joined
	for _, t := range tracers {
		if t != nil {
			some = append(some, t)
		}
	}
	switch len(some) {
	case 0:
		return nil
	case 1:
		return some[0]
	}
	return some
}

// joined is two tracers or more.
type joined []Tracer

// Begin implements Tracer.
func (j joined) Begin(ctx context.Context, op Op) (context.Context, Recorder) {
	var one Recorder
	var several recorders
	for _, t := range j {
		var r Recorder
		ctx, r = t.Begin(ctx, op)
		switch {
		case r == nil:
		case one == nil:
			one = r
		case several == nil:
			several = append(make(recorders, 0, len(j)), one, r)
		default:
			several = append(several, r)
		}
	}
	if several != nil {
		return ctx, several
	}
	return ctx, one
}

// recorders are those of one operation that want to know.
type recorders []Recorder

func (rs recorders) Phase(name string) {
	for _, r := range rs {
		r.Phase(name)
	}
}

func (rs recorders) Int(name string, value int64) {
	for _, r := range rs {
		r.Int(name, value)
	}
}

func (rs recorders) Text(name, value string) {
	for _, r := range rs {
		r.Text(name, value)
	}
}

func (rs recorders) Key(name string, key []byte) {
	for _, r := range rs {
		r.Key(name, key)
	}
}

func (rs recorders) End(err error) {
	for _, r := range rs {
		r.End(err)
	}
}
