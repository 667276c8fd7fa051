package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/annalsdb/annals/client"
)

// newOutlet returns an outlet that sends batches to a server and returns when they are durable.
func newOutlet(config appendConfig) (outlet, error) {
	c, err := config.connection.client()
	if err != nil {
		return outlet{}, err
	}
	if config.producer == "" {
		return outlet{send: func(ctx context.Context, batch []entry) error {
			_, err := c.Append(ctx, recordsOf(batch), optionsOf(batch, config.expectNext))
			return sortError(err)
		}}, nil
	}
	p := c.NewProducer(client.ProducerOptions{ID: config.producer, Next: config.producerSeq, RetryFor: retryFor})
	return outlet{number: p.Next, send: func(ctx context.Context, batch []entry) error {
		_, err := p.Append(ctx, recordsOf(batch), optionsOf(batch, config.expectNext))
		err = sortError(err)
		var refused *sendError
		if errors.As(err, &refused) {
			refused.retry = false // the producer did
		}
		return err
	}}, nil
}

func recordsOf(batch []entry) []client.Record {
	records := make([]client.Record, len(batch))
	for i, e := range batch {
		records[i] = client.Record{Key: e.key, Value: e.value}
	}
	return records
}

// optionsOf returns the options of an append, on condition that each of its keys has no
// record at or above the sequence, if one is given.
func optionsOf(batch []entry, expectNext *uint64) client.AppendOptions {
	o := client.AppendOptions{Ack: client.AckDurable}
	if expectNext == nil {
		return o
	}
	seen := make(map[string]bool)
	for _, e := range batch {
		if !seen[string(e.key)] {
			seen[string(e.key)] = true
			o.ExpectedNext = append(o.ExpectedNext, client.KeySequence{Key: e.key, Next: *expectNext})
		}
	}
	return o
}

// sortError makes a *sendError of the error of an append that is known to have
// appended nothing, and says whether trying again can help.
func sortError(err error) error {
	if err == nil || !client.NotAppended(err) {
		return err
	}
	var conflict *client.ConflictError
	if errors.As(err, &conflict) {
		err = fmt.Errorf("key %s: %w", shellQuote(conflict.Key), err)
	}
	refused := &sendError{err: err}
	var answer *client.Error
	if errors.As(err, &answer) {
		refused.after = answer.RetryAfter
		refused.retry = answer.Status == http.StatusTooManyRequests || answer.Status == http.StatusServiceUnavailable
	}
	return refused
}

// newPageFunc returns a function that reads pages through a client.
func newPageFunc(c *client.Client) pageFunc {
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
	}
}
