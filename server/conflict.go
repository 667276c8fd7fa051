package server

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/annalsdb/annals/engine"
)

// conflictOf answers for an append that the log did not take because it is not as
// the append expects, or returns nil. Nothing was appended.
func conflictOf(err error) *apiError {
	var condition *engine.ConditionError
	var producer *engine.ProducerError
	switch {
	case errors.As(err, &condition):
		return &apiError{status: http.StatusConflict, key: condition.Key, lastSequence: &condition.Last,
			message: fmt.Sprintf("the key has a record with sequence %d, at or above the expected one; nothing was appended", condition.Last)}
	case errors.As(err, &producer):
		what := "is too old: it cannot be told whether it was appended"
		if producer.Sequence > producer.Last {
			what = "leaves a gap: nothing was appended"
		}
		return &apiError{status: http.StatusConflict, lastProducerSeq: &producer.Last,
			message: fmt.Sprintf("producerSeq %d %s; the last one of the producer is %d", producer.Sequence, what, producer.Last)}
	case errors.Is(err, engine.ErrConflict):
		return &apiError{status: http.StatusConflict, message: err.Error()}
	}
	return nil
}
