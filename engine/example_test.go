package engine_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore/dir"
	"github.com/annalsdb/annals/objstore/mem"
)

// A log in memory: append to two streams, read one back.
func Example() {
	ctx := context.Background()
	db, err := engine.Open(ctx, mem.New(mem.Options{}), engine.Options{FlushInterval: time.Millisecond})
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close(ctx)

	a, err := db.Append(ctx, []engine.Record{
		{Key: []byte("user/42"), Value: []byte("signed in")},
		{Key: []byte("user/7"), Value: []byte("signed in")},
		{Key: []byte("user/42"), Value: []byte("bought a book")},
	}, engine.AppendOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("sequences %d to %d\n", a.First, a.Last)

	it := db.Scan(ctx, []byte("user/42"), engine.All(), engine.ScanOptions{})
	for rec := range it.All() {
		fmt.Printf("%d %s\n", rec.Sequence, rec.Value)
	}
	if err := it.Err(); err != nil {
		log.Fatal(err)
	}
	fmt.Println("go on from", it.Next())
	// Output:
	// sequences 0 to 2
	// 0 signed in
	// 2 bought a book
	// go on from 3
}

// What was acknowledged is there after the process ends, however it ends.
func ExampleOpen() {
	ctx := context.Background()
	path, err := os.MkdirTemp("", "annals-example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(path)
	for range 2 {
		store, err := dir.Open(path)
		if err != nil {
			log.Fatal(err)
		}
		db, err := engine.Open(ctx, store, engine.Options{})
		if err != nil {
			log.Fatal(err)
		}
		if _, err := db.Append(ctx, []engine.Record{{Key: []byte("k"), Value: []byte("v")}}, engine.AppendOptions{}); err != nil {
			log.Fatal(err)
		}
		n, err := db.Count(ctx, []byte("k"), engine.All())
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(n)
		if err := db.Close(ctx); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// 1
	// 2
}

// A follower reads what is there, then waits for more; a commit wakes it.
func ExampleDB_Wait() {
	ctx := context.Background()
	db, err := engine.Open(ctx, mem.New(mem.Options{}), engine.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close(ctx)
	key := []byte("job/1")
	go func() {
		_, err := db.Append(ctx, []engine.Record{{Key: key, Value: []byte("done")}}, engine.AppendOptions{})
		if err != nil {
			log.Print(err)
		}
	}()
	var cursor uint64
	for range 2 {
		it := db.Scan(ctx, key, engine.From(cursor), engine.ScanOptions{})
		for rec := range it.All() {
			fmt.Printf("%s\n", rec.Value)
			return
		}
		cursor = it.Next()
		if err := db.Wait(ctx, key, engine.From(cursor)); err != nil {
			log.Fatal(err)
		}
	}
	// Output: done
}

// A follower of one key and of all keys with a prefix: first what is there, then what comes.
func ExampleDB_Follow() {
	ctx := context.Background()
	db, err := engine.Open(ctx, mem.New(mem.Options{}), engine.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close(ctx)
	put := func(key, value string) {
		_, err := db.Append(ctx, []engine.Record{{Key: []byte(key), Value: []byte(value)}}, engine.AppendOptions{})
		if err != nil {
			log.Print(err)
		}
	}
	put("user/42", "signed in")

	f, err := db.Follow(ctx,
		engine.Stream{Key: []byte("user/42")},
		engine.Stream{Key: []byte("device/"), Prefix: true, From: db.Frontier()})
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	go func() {
		put("user/7", "signed in")
		put("device/3", "21.5")
	}()
	for rec := range f.All() { // ends with ctx, or with the log
		fmt.Printf("%s: %s\n", rec.Key, rec.Value)
		if rec.Sequence == 2 {
			break
		}
	}
	if err := f.Err(); err != nil {
		log.Fatal(err)
	}
	fmt.Println("go on from", f.Cursor())
	// Output:
	// user/42: signed in
	// device/3: 21.5
	// go on from 3
}

// A server reads in pieces, and ends a wait when it has something else to send.
func ExampleFollower_Next() {
	ctx := context.Background()
	db, err := engine.Open(ctx, mem.New(mem.Options{}), engine.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close(ctx)
	f, err := db.Follow(ctx, engine.Stream{Key: []byte("k")})
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	time.AfterFunc(time.Millisecond, f.Wake)
	recs, err := f.Next(engine.FollowRead{MaxBytes: 32 << 10})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(recs), "records: send a sign of life")
	// Output: 0 records: send a sign of life
}

// Keys are listed in byte order, a page at a time.
func ExampleDB_Keys() {
	ctx := context.Background()
	db, err := engine.Open(ctx, mem.New(mem.Options{}), engine.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close(ctx)
	var recs []engine.Record
	for i := range 5 {
		recs = append(recs, engine.Record{Key: fmt.Appendf(nil, "device/%d", i)})
	}
	if _, err := db.Append(ctx, recs, engine.AppendOptions{}); err != nil {
		log.Fatal(err)
	}
	o := engine.KeysOptions{Prefix: []byte("device/"), Limit: 3}
	for {
		page, err := db.Keys(ctx, o)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s\n", page.Keys)
		if !page.More {
			break
		}
		o.After = page.Keys[len(page.Keys)-1]
	}
	// Output:
	// [device/0 device/1 device/2]
	// [device/3 device/4]
}
