package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http/httptest"
	"time"

	"github.com/annalsdb/annals/client"
	"github.com/annalsdb/annals/engine"
	"github.com/annalsdb/annals/objstore/mem"
	"github.com/annalsdb/annals/server"
)

// serve runs a server of a new log in memory, for the examples.
func serve() (url string, stop func()) {
	db, err := engine.Open(context.Background(), mem.New(mem.Options{}), engine.Options{FlushInterval: time.Millisecond})
	if err != nil {
		log.Fatal(err)
	}
	s, err := server.New(server.Options{DB: db})
	if err != nil {
		log.Fatal(err)
	}
	ts := httptest.NewServer(s)
	return ts.URL, func() {
		_ = s.Shutdown(context.Background()) // answers without end
		ts.Close()
		_ = db.Close(context.Background())
	}
}

// fill appends records 1 to 3 of two keys.
func fill(c *client.Client) {
	for _, value := range []string{"1", "2", "3"} {
		batch := []client.Record{{Key: []byte("user/42"), Value: []byte(value)}, {Key: []byte("user/43"), Value: []byte(value)}}
		if _, err := c.Append(context.Background(), batch, client.AppendOptions{}); err != nil {
			log.Fatal(err)
		}
	}
}

func open(url string) *client.Client {
	c, err := client.New(url, client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	return c
}

func Example() {
	url, stop := serve()
	defer stop()
	c, err := client.New(url, client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	at, err := c.Append(ctx, []client.Record{
		{Key: []byte("user/42"), Value: []byte("hello")},
		{Key: []byte("user/43"), Value: []byte("hi")},
	}, client.AppendOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(at.Records, "records from sequence", at.Start)

	for v, err := range c.ScanAll(ctx, []byte("user/42"), client.ScanOptions{}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%d: %s\n", v.Sequence, v.Value)
	}
	// Output:
	// 2 records from sequence 0
	// 0: hello
}

// One key at a time belongs to whoever appended last: an append on a condition.
func ExampleClient_Append_condition() {
	url, stop := serve()
	defer stop()
	c, ctx := open(url), context.Background()
	fill(c)

	key := []byte("user/42")
	batch := []client.Record{{Key: key, Value: []byte("4")}}
	_, err := c.Append(ctx, batch, client.AppendOptions{ExpectedNext: []client.KeySequence{{Key: key, Next: 3}}})
	var conflict *client.ConflictError
	if errors.As(err, &conflict) {
		fmt.Println("somebody was faster: the newest record is at", conflict.LastSequence)
		next := conflict.LastSequence + 1
		_, err = c.Append(ctx, batch, client.AppendOptions{ExpectedNext: []client.KeySequence{{Key: key, Next: next}}})
	}
	fmt.Println(err)
	// Output:
	// somebody was faster: the newest record is at 4
	// <nil>
}

// Batches that are appended once, whatever becomes of requests and answers.
func ExampleClient_NewProducer() {
	url, stop := serve()
	defer stop()
	c, ctx := open(url), context.Background()

	p := c.NewProducer(client.ProducerOptions{})
	at, err := p.Append(ctx, []client.Record{{Key: []byte("user/42"), Value: []byte("hello")}}, client.AppendOptions{})
	var unsettled *client.UnsettledError
	if errors.As(err, &unsettled) {
		// The batch may be there. Retry goes on with it, and appends it once at most.
		at, err = p.Retry(ctx)
	}
	if err != nil {
		log.Fatal("not appended: ", err)
	}
	fmt.Println("appended at", at.Start)
	// Output: appended at 0
}

// Single records from any goroutine, as few requests, in order.
func ExampleClient_NewBatcher() {
	url, stop := serve()
	defer stop()
	c, ctx := open(url), context.Background()

	b := c.NewBatcher(client.BatcherOptions{Linger: 2 * time.Millisecond})
	var last client.Receipt
	for i := range 1000 {
		var err error
		last, err = b.Append(ctx, client.Record{Key: []byte("user/42"), Value: fmt.Append(nil, i)})
		if err != nil {
			log.Fatal(err) // the batcher has failed
		}
	}
	at, err := last.Wait(ctx) // until it is durable, and all before it
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the last one is at", at.Sequence)
	if err := b.Close(ctx); err != nil {
		log.Fatal(err)
	}
	// Output: the last one is at 999
}

// Keys by prefix, and how many records each has.
func ExampleClient_KeysAll() {
	url, stop := serve()
	defer stop()
	c, ctx := open(url), context.Background()
	fill(c)

	for key, err := range c.KeysAll(ctx, client.KeysOptions{Prefix: []byte("user/")}) {
		if err != nil {
			log.Fatal(err)
		}
		n, err := c.Count(ctx, key, 0, 0)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %d records\n", key, n)
	}
	// Output:
	// user/42: 3 records
	// user/43: 3 records
}

// A consumer that goes on where it was, after a lost connection and after a restart.
func ExampleClient_Follow() {
	url, stop := serve()
	defer stop()
	c, ctx := open(url), context.Background()
	fill(c)

	consumer := func(records int) {
		f := c.Follow(ctx, client.FollowOptions{Consumer: "mailer"},
			client.Stream{Key: []byte("user/42"), AtCursor: true})
		for r := range f.All() {
			fmt.Printf("%s: %s\n", r.Key, r.Value.Value)
			// It is done; a record that is not stored as done is delivered again after a restart.
			done := []client.Cursor{{Key: r.Key, Next: r.Next}}
			if _, err := c.SetCursors(ctx, "mailer", done, false); err != nil {
				log.Fatal(err)
			}
			if records--; records == 0 {
				break
			}
		}
		if err := f.Err(); err != nil {
			log.Fatal(err) // refused for good, or ctx ended
		}
	}
	consumer(2)
	fmt.Println("restarted")
	consumer(1)
	// Output:
	// user/42: 1
	// user/42: 2
	// restarted
	// user/42: 3
}

// What a failure means.
func Example_errors() {
	url, stop := serve()
	defer stop()
	c, ctx := open(url), context.Background()

	_, err := c.Append(ctx, []client.Record{{Key: make([]byte, 5000)}}, client.AppendOptions{})
	switch {
	case errors.Is(err, client.ErrUnauthorized), errors.Is(err, client.ErrForbidden):
		fmt.Println("another token is needed")
	case errors.Is(err, client.ErrInvalid):
		fmt.Println("the request is wrong")
	case client.NotAppended(err) && client.Transient(err):
		fmt.Println("it is safe to send it again")
	case err != nil:
		fmt.Println("it may be in the log")
	}
	// Output: the request is wrong
}
