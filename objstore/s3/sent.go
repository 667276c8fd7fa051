package s3

import (
	"net/http"
	"slices"
	"sync/atomic"

	"github.com/annalsdb/annals/objstore"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/smithy-go/middleware"
)

// operations are what this package asks of S3, by S3's names. The last is for
// what is missing in the list, which is nothing.
var operations = [...]string{
	"PutObject", "GetObject", "HeadObject", "ListObjectsV2", "DeleteObjects",
	"CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload", "AbortMultipartUpload", "ListMultipartUploads",
	"other",
}

var _ objstore.Sender = (*Store)(nil)

// Sent implements objstore.Sender. Every attempt counts, by S3's operation and by the status
// of its answer: an error inside an answer of status 200, which S3 sends for names of a
// DeleteObjects and for a CompleteMultipartUpload that took long, is AnswerOK.
// Requests for credentials do not count, and a request that Go's HTTP client repeats by
// itself, because the server was just closing the connection, counts once.
func (s *Store) Sent() []objstore.SentRequests {
	list := make([]objstore.SentRequests, len(operations))
	for i, operation := range operations {
		list[i].Operation = operation
		for a := range list[i].Count {
			list[i].Count[a] = s.sent[i][a].Load()
		}
	}
	return list
}

// sentCounts counts requests by operation and answer.
type sentCounts [len(operations)][objstore.NumAnswers]atomic.Uint64

func (c *sentCounts) add(operation string, answer objstore.Answer) {
	i := slices.Index(operations[:], operation)
	if i < 0 {
		i = len(operations) - 1
	}
	c[i][answer].Add(1)
}

// countingClient counts what the SDK sends.
type countingClient struct {
	inner aws.HTTPClient
	sent  *sentCounts
}

// Do implements aws.HTTPClient.
func (c *countingClient) Do(req *http.Request) (*http.Response, error) {
	resp, err := c.inner.Do(req)
	answer := objstore.AnswerNone
	if err == nil {
		answer = answerOf(resp.StatusCode)
	}
	c.sent.add(middleware.GetOperationName(req.Context()), answer)
	return resp, err
}

func answerOf(status int) objstore.Answer {
	switch {
	case status < 400:
		return objstore.AnswerOK
	case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable:
		return objstore.AnswerThrottled
	case status < 500:
		return objstore.AnswerRefused
	}
	return objstore.AnswerFailed
}
