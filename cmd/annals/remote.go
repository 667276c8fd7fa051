package main

import (
	"context"
	"errors"
	"net/http"

	"github.com/annalsdb/annals/client"
)

// newAppendFunc returns a function that sends batches to a server and returns
// when they are durable.
func newAppendFunc(server string) (appendFunc, error) {
	c, err := client.New(server, client.Options{})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, batch []entry) error {
		records := make([]client.Record, len(batch))
		for i, e := range batch {
			records[i] = client.Record{Key: e.key, Value: e.value}
		}
		_, err := c.Append(ctx, records, client.AppendOptions{Ack: client.AckDurable})
		return sortError(err)
	}, nil
}

// sortError makes a *sendError of the error of an append that is known to have
// appended nothing, and says whether trying again can help.
func sortError(err error) error {
	if err == nil || !client.NotAppended(err) {
		return err
	}
	refused := &sendError{err: err}
	var answer *client.Error
	if errors.As(err, &answer) {
		refused.after = answer.RetryAfter
		refused.retry = answer.Status == http.StatusTooManyRequests || answer.Status == http.StatusServiceUnavailable
	}
	return refused
}

// newPageFunc returns a function that reads pages from a server.
func newPageFunc(server string) (pageFunc, error) {
	c, err := client.New(server, client.Options{})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, q pageRequest) ([]scanned, uint64, error) {
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		page, err := c.Scan(ctx, q.key, client.ScanOptions{
			Start: q.from, End: q.to, Limit: int(q.limit), Last: int(q.last),
		})
		if err != nil {
			return nil, 0, err
		}
		records := make([]scanned, len(page.Values))
		for i, v := range page.Values {
			records[i] = scanned{v.Sequence, v.Timestamp, v.Value}
		}
		return records, page.Next, nil
	}, nil
}
