package auth

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func entry(name string, scopes Scope, prefixes ...string) (Entry, string) {
	secret := Generate()
	e := Entry{Name: name, Hash: HashOf(secret), Scopes: scopes}
	for _, p := range prefixes {
		e.Prefixes = append(e.Prefixes, []byte(p))
	}
	return e, secret
}

func TestSecrets(t *testing.T) {
	a, b := Generate(), Generate()
	require.NotEqual(t, a, b)
	require.Len(t, a, 71)
	require.True(t, WellFormed(a))
	for _, bad := range []string{"", "annals_", a + "0", a[:70], "Annals_" + a[7:], a[:70] + "G", a[:70] + "A", strings.Replace(a, "_", "-", 1)} {
		require.False(t, WellFormed(bad), bad)
	}
	h := HashOf(a)
	parsed, err := ParseHash(h.String())
	require.NoError(t, err)
	require.Equal(t, h, parsed)
	require.Len(t, h.Short(), 8)
	for _, bad := range []string{"", "sha256:", h.String()[7:], h.String() + "0", h.String()[:70] + "g", "sha512:" + h.String()[7:]} {
		_, err := ParseHash(bad)
		require.ErrorContains(t, err, "64 hexadecimal digits", bad)
	}
	_, err = ParseHash(a)
	require.ErrorContains(t, err, "not the hash of one")
	require.NotContains(t, err.Error(), a[7:], "the secret is not repeated")
}

func TestLookup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mailer, secret := entry("mailer", Read|Append)
		short, shortSecret := entry("short", Read)
		short.Expires = time.Now().Add(time.Hour)
		tokens, err := NewTokens([]Entry{mailer, short})
		require.NoError(t, err)
		require.Equal(t, 2, tokens.Len())
		got, err := tokens.Lookup(secret)
		require.NoError(t, err)
		require.Equal(t, "mailer", got.Name())
		require.True(t, got.Allows(Read) && got.Allows(Append) && got.Allows(Read|Append) && !got.Allows(Admin))
		require.False(t, got.Limited())
		require.NoError(t, got.Over())
		for _, s := range []string{"", Generate(), secret + " ", secret[1:]} {
			got, err := tokens.Lookup(s)
			require.ErrorIs(t, err, ErrUnknown)
			require.Nil(t, got)
		}
		// What somebody made up is no secret, though the file has its hash.
		weak := Entry{Name: "weak", Hash: HashOf("password"), Scopes: Read}
		require.NoError(t, tokens.Replace([]Entry{weak}))
		_, err = tokens.Lookup("password")
		require.ErrorIs(t, err, ErrUnknown)
		require.NoError(t, tokens.Replace([]Entry{short}))

		s, err := tokens.Lookup(shortSecret)
		require.NoError(t, err)
		ctx, stop := s.Bound(t.Context())
		defer stop()
		time.Sleep(time.Hour - 1) // of the fake clock
		synctest.Wait()
		require.NoError(t, s.Over())
		require.NoError(t, ctx.Err())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.ErrorIs(t, s.Over(), ErrExpired)
		require.Error(t, ctx.Err())
		got, err = tokens.Lookup(shortSecret)
		require.ErrorIs(t, err, ErrExpired)
		require.Equal(t, "short", got.Name(), "for the log")
	})
}

func TestReplaceEndsWhatIsNotTheSame(t *testing.T) {
	kept, keptSecret := entry("kept", Read, "a", "b")
	gone, goneSecret := entry("gone", Read)
	narrowed, narrowedSecret := entry("narrowed", Read, "a")
	tokens, err := NewTokens([]Entry{kept, gone, narrowed})
	require.NoError(t, err)
	look := func(secret string) *Token {
		got, err := tokens.Lookup(secret)
		require.NoError(t, err)
		return got
	}
	k, g, n := look(keptSecret), look(goneSecret), look(narrowedSecret)
	bound, stop := g.Bound(t.Context())
	defer stop()

	require.Error(t, tokens.Replace([]Entry{kept, kept}))
	require.NoError(t, g.Over(), "a bad set replaces nothing")

	kept.Prefixes = [][]byte{[]byte("b"), []byte("ab"), []byte("a")} // says the same
	narrowed.Prefixes = [][]byte{[]byte("aa")}
	require.NoError(t, tokens.Replace([]Entry{narrowed, kept}))
	require.Same(t, k, look(keptSecret))
	require.NoError(t, k.Over())
	require.ErrorIs(t, g.Over(), ErrUnknown)
	<-bound.Done()
	require.ErrorIs(t, n.Over(), ErrUnknown)
	require.NotSame(t, n, look(narrowedSecret))
	require.NoError(t, look(narrowedSecret).Over())
	_, err = tokens.Lookup(goneSecret)
	require.ErrorIs(t, err, ErrUnknown)

	// A bound on what is over already.
	late, stopLate := g.Bound(context.Background())
	defer stopLate()
	<-late.Done()
	// And one that is not needed any more.
	free, stopFree := k.Bound(context.Background())
	stopFree()
	require.Error(t, free.Err())

	for name, change := range map[string]func(*Entry){
		"name":     func(e *Entry) { e.Name = "other" },
		"scopes":   func(e *Entry) { e.Scopes = Append },
		"prefixes": func(e *Entry) { e.Prefixes = nil },
		"expires":  func(e *Entry) { e.Expires = time.Now().Add(time.Hour) },
	} {
		before := look(keptSecret)
		e := kept
		change(&e)
		require.NoError(t, tokens.Replace([]Entry{e}))
		require.Error(t, before.Over(), name)
		require.NoError(t, tokens.Replace([]Entry{kept}))
	}
}

// Covers and Within say of each key what the prefixes say, one by one.
func TestPrefixesProperty(t *testing.T) {
	keys := rapid.SliceOfN(rapid.SampledFrom([]byte{0, 'a', 'b', 0xff}), 0, 4)
	prefix := rapid.SliceOfN(rapid.SampledFrom([]byte{0, 'a', 'b', 0xff}), 1, 4)
	rapid.Check(t, func(t *rapid.T) {
		e, _ := entry("t", Read)
		e.Prefixes = rapid.SliceOfN(prefix, 1, 6).Draw(t, "prefixes")
		token := newToken(&e)
		covers := func(key []byte) bool {
			return slices.ContainsFunc(e.Prefixes, func(p []byte) bool { return bytes.HasPrefix(key, p) })
		}
		asked := keys.Draw(t, "asked")
		within := token.Within(asked)
		require.True(t, slices.IsSortedFunc(within, bytes.Compare))
		for range 20 {
			key := keys.Draw(t, "key")
			require.Equal(t, covers(key), token.Covers(key), "%q", key)
			times := 0
			for _, p := range within {
				if bytes.HasPrefix(key, p) {
					times++
				}
			}
			want := 0
			if covers(key) && bytes.HasPrefix(key, asked) {
				want = 1
			}
			require.Equal(t, want, times, "%q within %q", key, within)
		}
	})
}

func TestProducersOfOtherPrefixesAreOthers(t *testing.T) {
	token := func(prefixes ...string) *Token {
		e, _ := entry("t", Append, prefixes...)
		return newToken(&e)
	}
	require.Equal(t, "p", token().Producer("p"))
	seen := make(map[string]bool)
	for _, tok := range []*Token{token("a"), token("b"), token("a", "b"), token("ab"), token("a/")} {
		for _, name := range []string{"p", "q", "/p", strings.Repeat("x", 128)} {
			got := tok.Producer(name)
			require.Len(t, got, 64)
			require.False(t, seen[got])
			seen[got] = true
		}
	}
	require.Equal(t, token("a", "b").Producer("p"), token("b", "a", "ab").Producer("p"), "a new token for the same keys goes on")
}
