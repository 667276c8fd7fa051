package s3sim

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/annalsdb/annals/objstore"
)

// operation is a request of S3's protocol.
type operation uint8

const (
	putObject operation = iota
	getObject
	headObject
	listObjects
	deleteObjects
	createUpload
	uploadPart
	completeUpload
	abortUpload
	listUploads

	numOperations = iota
)

// operationNames are S3's, as package s3 counts them.
var operationNames = [numOperations]string{
	"PutObject", "GetObject", "HeadObject", "ListObjectsV2", "DeleteObjects",
	"CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload", "AbortMultipartUpload", "ListMultipartUploads",
}

// Sent implements objstore.Sender: what package s3 would have sent. When the inner store counts
// what it sends, these are its counts, which are what somebody charges for.
func (s *Store) Sent() []objstore.SentRequests {
	if s.sender != nil {
		return s.sender.Sent()
	}
	list := make([]objstore.SentRequests, numOperations)
	for i, name := range operationNames {
		list[i].Operation = name
		for a := range list[i].Count {
			list[i].Count[a] = s.sent[i][a].Load()
		}
	}
	return list
}

// sentCounts counts requests by operation and answer.
type sentCounts [numOperations][objstore.NumAnswers]atomic.Uint64

// add counts a request, and the others of the same call. Of a Put in parts that was given up all parts
// count, though some may not have been sent yet, and that its upload is aborted, which takes no time here.
func (c *sentCounts) add(r request, answer objstore.Answer) {
	c[r.operation][answer].Add(1)
	if r.parts == 0 {
		return
	}
	c[createUpload][objstore.AnswerOK].Add(1)
	c[uploadPart][objstore.AnswerOK].Add(uint64(r.parts))
	if answer != objstore.AnswerOK {
		c[abortUpload][objstore.AnswerOK].Add(1)
	}
}

// refusals are the errors of a request that cannot be served as it is.
var refusals = [...]error{
	objstore.ErrNotFound, objstore.ErrPrecondition, objstore.ErrConflict, objstore.ErrRange,
	objstore.ErrDenied, objstore.ErrNoBucket,
}

// answerOf returns how S3 would have answered what the inner store answered so.
func answerOf(ctx context.Context, err error) objstore.Answer {
	switch {
	case err == nil, errors.Is(err, objstore.ErrNotModified), errors.Is(err, objstore.ErrTooLarge):
		return objstore.AnswerOK // a body that the client finds too large was on its way
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return objstore.AnswerNone
	}
	for _, refusal := range refusals {
		if errors.Is(err, refusal) {
			return objstore.AnswerRefused
		}
	}
	return objstore.AnswerFailed
}
